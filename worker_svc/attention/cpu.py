"""Attention for processors, in plain torch: spans of like shape share one padded gather and two matrix products.

Scores of like spans take spans * heads * new tokens * context floats, which the token budget of a step bounds.
"""

from collections.abc import Sequence
from functools import cache
from itertools import groupby

import torch
from torch import Tensor

from worker_svc.attention.port import Attend
from worker_svc.batch import Span, block_tables
from worker_svc.device import CPU, upload
from worker_svc.model.groups import View


class CpuAttention:
    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device

    def prepare(self, spans: Sequence[Span], block_size: int) -> Attend:
        @cache
        def alike(view: View) -> list[_Alike]:
            def shape(span: Span) -> tuple[int, int]:
                """Of spans of one shape, none reaches twice as far as another: little is padded."""
                first = span.reach(view.window, block_size).start * block_size
                return span.num_new, (span.num_context - first).bit_length()

            groups = groupby(sorted(spans, key=shape), key=shape)
            return [_Alike(list(some), view, block_size, self._device) for _, some in groups]

        def attend(queries: Tensor, keys: Tensor, values: Tensor, view: View) -> Tensor:
            out = torch.empty_like(queries)
            for some in alike(view):
                some.attend(queries, keys, values, out)
            return out

        return attend


class _Alike:
    """Shapes: B spans, n new tokens of each, S slots of the most blocks reached, M blocks, K KV heads, D head_dim.

    r counts the queries of a KV head: those of all new tokens and of all query heads that share it.
    """

    def __init__(self, spans: Sequence[Span], view: View, block_size: int, device: torch.device) -> None:
        self._rows = upload([span.start + i for span in spans for i in range(span.num_new)], device)
        self._tables_bm = block_tables(spans, view, block_size, device)
        self._mask_b1n1s = _mask(spans, view, block_size, self._tables_bm)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        num_spans, _, num_new, _, num_slots = self._mask_b1n1s.shape
        num_heads, head_dim = queries.shape[1:]
        num_kv_heads = keys.shape[1]
        k_bksd, v_bksd = self._gather(keys, values)
        q_bnkgd = queries.index_select(0, self._rows).view(num_spans, num_new, num_kv_heads, -1, head_dim)
        q_bkrd = q_bnkgd.transpose(1, 2).reshape(num_spans, num_kv_heads, -1, head_dim)
        scores_bkrs = (q_bkrd @ k_bksd.transpose(-1, -2)).float().mul_(head_dim**-0.5)
        scores_bkrs.view(num_spans, num_kv_heads, num_new, -1, num_slots).add_(self._mask_b1n1s)
        y_bkrd = scores_bkrs.softmax(-1).to(v_bksd.dtype) @ v_bksd
        y_bnkgd = y_bkrd.view(num_spans, num_kv_heads, num_new, -1, head_dim).transpose(1, 2)
        out.index_copy_(0, self._rows, y_bnkgd.reshape(-1, num_heads, head_dim))

    def _gather(self, *caches: Tensor) -> list[Tensor]:
        """[B, K, S, D] each: a head's part of a block is one row, so that a head's rows make a contiguous matrix."""
        num_kv_heads, block_size, head_dim = caches[0].shape[1:]
        heads_k1 = torch.arange(num_kv_heads, device=self._tables_bm.device).unsqueeze(-1)
        heads_bkm = self._tables_bm.unsqueeze(1) * num_kv_heads + heads_k1
        rows = heads_bkm.flatten()
        return [
            cache.view(-1, block_size * head_dim).index_select(0, rows).view(*heads_bkm.shape[:2], -1, head_dim)
            for cache in caches
        ]


def _mask(spans: Sequence[Span], view: View, block_size: int, tables_bm: Tensor) -> Tensor:
    """[B, 1, n, 1, S] 0 where a new token sees a slot of the blocks that its span reaches, else -inf."""
    firsts = [span.reach(view.window, block_size).start * block_size for span in spans]
    device = tables_bm.device
    positions_bn = [
        range(s.num_computed - first, s.num_context - first) for s, first in zip(spans, firsts, strict=True)
    ]
    positions_bn1 = upload(positions_bn, device).unsqueeze(-1)
    slots = torch.arange(tables_bm.shape[1] * block_size, device=device)
    hidden_bns = slots > positions_bn1
    if view.window is not None:
        hidden_bns |= slots <= positions_bn1 - view.window
    return torch.zeros(hidden_bns.shape, device=device).masked_fill_(hidden_bns, -torch.inf)[:, None, :, None]
