"""An engine that keeps the hidden states of what it runs, so that modules can be trained on them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from augury.types import Row
from worker_svc.batch import Span
from worker_svc.engine import Engine


class Recorder(Engine):
    """To be loaded with ``depth`` 0, and for requests without prefix hits."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._recorded: defaultdict[int, list[Tensor]] = defaultdict(list)

    def take(self, handle: int) -> Tensor:
        """The hidden states behind the final norm of all rows of a request that ran, [T, E]; forgets them."""
        return torch.cat(self._recorded.pop(handle))

    def _forward(self, rows: Sequence[Row], spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
        hidden_te, logits_nv = super()._forward(rows, spans)
        for row, span in zip(rows, spans, strict=True):
            self._recorded[row.handle].append(hidden_te[span.start : span.start + span.num_new])
        return hidden_te, logits_nv
