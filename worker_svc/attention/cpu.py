"""Attention for processors: spans of like shape share one padded gather and two matrix products.

Scores of a group take spans * heads * new tokens * context floats, which the token budget of a step bounds.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from worker_svc.attention.port import Attend
from worker_svc.batch import Span, block_tables


class CpuAttention:
    def prepare(self, spans: Sequence[Span], block_size: int) -> Attend:
        alike = groupby(sorted(spans, key=_shape), key=_shape)
        groups = [_Group(list(group), block_size) for _, group in alike]

        def attend(queries: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
            out = torch.empty_like(queries)
            for group in groups:
                group.attend(queries, keys, values, window, out)
            return out

        return attend


class _Group:
    """Shapes: B spans, n new tokens of each, S slots of the longest context's blocks, M blocks, K KV heads, D head_dim.

    r counts the queries of a KV head: those of all new tokens and of all query heads that share it.
    """

    def __init__(self, spans: Sequence[Span], block_size: int) -> None:
        self._rows = torch.tensor([span.start + i for span in spans for i in range(span.num_new)])
        self._tables_bm = block_tables(spans, block_size)
        self._positions_bn1 = torch.tensor([range(span.num_computed, span.num_context) for span in spans]).unsqueeze(-1)
        self._slots = torch.arange(self._tables_bm.shape[1] * block_size)
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, window: int | None, out: Tensor) -> None:
        num_spans, num_new, _ = self._positions_bn1.shape
        num_heads, head_dim = queries.shape[1:]
        num_slots = len(self._slots)
        num_kv_heads = keys.shape[1]
        k_bksd, v_bksd = self._gather(keys, values)
        q_bnkgd = queries.index_select(0, self._rows).view(num_spans, num_new, num_kv_heads, -1, head_dim)
        q_bkrd = q_bnkgd.transpose(1, 2).reshape(num_spans, num_kv_heads, -1, head_dim)
        scores_bkrs = (q_bkrd @ k_bksd.transpose(-1, -2)).float().mul_(head_dim**-0.5)
        scores_bkrs.view(num_spans, num_kv_heads, num_new, -1, num_slots).add_(self._mask_b1n1s(window))
        y_bkrd = scores_bkrs.softmax(-1).to(v_bksd.dtype) @ v_bksd
        y_bnkgd = y_bkrd.view(num_spans, num_kv_heads, num_new, -1, head_dim).transpose(1, 2)
        out.index_copy_(0, self._rows, y_bnkgd.reshape(-1, num_heads, head_dim))

    def _mask_b1n1s(self, window: int | None) -> Tensor:
        """0 where a new token sees a slot, else -inf. Layers of one window share it."""
        if window not in self._masks:
            hidden_bns = self._slots > self._positions_bn1
            if window is not None:
                hidden_bns |= self._slots <= self._positions_bn1 - window
            zeros = torch.zeros(hidden_bns.shape)
            self._masks[window] = zeros.masked_fill_(hidden_bns, -torch.inf)[:, None, :, None]
        return self._masks[window]

    def _gather(self, *caches: Tensor) -> list[Tensor]:
        """[B, K, S, D] each: a head's part of a block is one row, so that a head's rows make a contiguous matrix."""
        num_kv_heads, block_size, head_dim = caches[0].shape[1:]
        heads_bkm = self._tables_bm.unsqueeze(1) * num_kv_heads + torch.arange(num_kv_heads).unsqueeze(-1)
        rows = heads_bkm.flatten()
        return [
            cache.view(-1, block_size * head_dim).index_select(0, rows).view(*heads_bkm.shape[:2], -1, head_dim)
            for cache in caches
        ]


def _shape(span: Span) -> tuple[int, int]:
    """Spans of one shape have as many new tokens, and contexts of which none is twice another's: little is padded."""
    return span.num_new, span.num_context.bit_length()
