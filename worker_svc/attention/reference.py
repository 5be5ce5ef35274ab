"""Attention, obvious and always right: one query at a time over exactly its own context, in float32.

Each query is worked out in the same shapes whatever its batch or chunk, so a text depends on neither, to the bit.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from worker_svc.attention.port import Attend
from worker_svc.batch import Span, block_tables
from worker_svc.device import CPU
from worker_svc.model.groups import View


class ReferenceAttention:
    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device

    def prepare(self, spans: Sequence[Span], block_size: int) -> Attend:
        @cache
        def tables(view: View) -> list[Tensor]:
            return [block_tables([span], view, block_size, self._device)[0] for span in spans]

        def attend(queries: Tensor, keys: Tensor, values: Tensor, view: View) -> Tensor:
            out = torch.empty_like(queries)
            for span, table in zip(spans, tables(view), strict=True):
                k_ksd, v_ksd = (part[table].transpose(0, 1).flatten(1, 2).float() for part in (keys, values))
                first = span.reach(view.window, block_size).start * block_size
                for offset in range(span.num_new):
                    row, end = span.start + offset, span.num_computed + offset + 1
                    start = 0 if view.window is None else max(0, end - view.window)
                    seen = slice(start - first, end - first)
                    out[row] = _attend_one(queries[row].float(), k_ksd[:, seen], v_ksd[:, seen])
            return out

        return attend


def _attend_one(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """query [heads, head_dim] over keys and values [kv_heads, length, head_dim], to [heads, head_dim]."""
    num_heads, head_dim = query.shape
    grouped = query.view(keys.shape[0], -1, head_dim)
    scores = grouped @ keys.transpose(1, 2) * head_dim**-0.5
    attended: Tensor = scores.softmax(-1) @ values
    return attended.view(num_heads, head_dim)
