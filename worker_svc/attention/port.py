"""What the model needs of an attention backend."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from worker_svc.batch import Batch

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""One layer's attention, from (queries, keys, values) to a tensor shaped like the queries.

Queries are [T, heads, head_dim]. Keys and values are the layer's whole cache, [num_blocks, kv_heads, block_size,
head_dim], and hold the batch's own tokens already. Causal; scores are scaled by head_dim ** -0.5.
"""


class Attention(Protocol):
    def prepare(self, batch: Batch) -> Attend:
        """What all layers of one step share is worked out once, here."""
        ...
