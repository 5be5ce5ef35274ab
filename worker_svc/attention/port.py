"""What the model needs of an attention backend."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from worker_svc.batch import Span
from worker_svc.model.groups import View


class Attend(Protocol):
    """Attention in one layer."""

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, view: View) -> Tensor:
        """A tensor shaped like ``queries`` [T, heads, head_dim], which belong to the new tokens of the spans.

        Keys and values are the layer's whole cache, [num_blocks, kv_heads, block_size, head_dim], and hold the new
        tokens already. Causal, over what ``view`` lets a query see; no block is read that none of a span's queries
        sees, for it may be somebody else's. Scores are scaled by head_dim ** -0.5.
        """
        ...


class Attention(Protocol):
    def prepare(self, spans: Sequence[Span], block_size: int) -> Attend:
        """What layers of one view share over the same ``spans`` is worked out once. Holds until the next call."""
        ...
