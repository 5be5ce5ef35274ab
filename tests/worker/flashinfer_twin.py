"""A twin of ``flashinfer.BatchPrefillWithPagedKVCacheWrapper``: what its documentation says, in plain torch.

The masks are those of FlashInfer 0.7, include/flashinfer/attention: prefill.cuh (causal) and variants.cuh (window).
"""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor


class Device:
    """Work that the host has handed to a device, and how much of it the device has done."""

    def __init__(self) -> None:
        self.num_handed = 0
        self.num_done = 0


class TwinMark:
    """As ``torch.cuda.Event``."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._place = 0

    def record(self) -> None:
        self._place = self._device.num_handed

    def query(self) -> bool:
        return self._device.num_done >= self._place


@dataclass(frozen=True)
class Plan:
    """What ``plan`` takes, in its order."""

    qo_indptr: Tensor
    paged_kv_indptr: Tensor
    paged_kv_indices: Tensor
    paged_kv_last_page_len: Tensor
    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    page_size: int
    _: KW_ONLY
    causal: bool = False
    window_left: int = -1
    q_data_type: torch.dtype = torch.float16
    kv_data_type: torch.dtype | None = None

    def check(self) -> None:
        metadata = self.qo_indptr, self.paged_kv_indptr, self.paged_kv_indices, self.paged_kv_last_page_len
        assert all(part.dtype == torch.int32 and part.device.type == "cpu" and part.dim() == 1 for part in metadata)
        batch_size = len(self.qo_indptr) - 1
        assert len(self.paged_kv_indptr) == batch_size + 1 and len(self.paged_kv_last_page_len) == batch_size
        assert self.qo_indptr[0] == self.paged_kv_indptr[0] == 0
        assert self.paged_kv_indptr[-1] == len(self.paged_kv_indices)
        assert ((self.paged_kv_last_page_len >= 1) & (self.paged_kv_last_page_len <= self.page_size)).all()
        assert self.num_qo_heads % self.num_kv_heads == 0 and self.window_left >= -1
        assert all(num_kv >= len(rows) > 0 for rows, _, num_kv in self.spans()), "causal masks need that"

    def spans(self) -> Iterator[tuple[range, Tensor, int]]:
        """Each request's rows of queries, pages, and tokens in them."""
        rows, parts = self.qo_indptr.tolist(), self.paged_kv_indptr.tolist()
        for i, num_in_last in enumerate(self.paged_kv_last_page_len.tolist()):
            pages = self.paged_kv_indices[parts[i] : parts[i + 1]].long()
            yield range(rows[i], rows[i + 1]), pages, (len(pages) - 1) * self.page_size + num_in_last

    def seen(self, num_q: int, num_kv: int) -> Tensor:
        """[num_q, num_kv]"""
        q_index, kv_index = torch.arange(num_q).unsqueeze(1), torch.arange(num_kv)
        seen = torch.ones(num_q, num_kv, dtype=torch.bool)
        if self.causal:
            seen &= kv_index + num_q <= num_kv + q_index
        if self.window_left >= 0:
            seen &= kv_index + num_q + self.window_left >= num_kv + q_index
        return seen


class TwinWrapper:
    """Layout HND. Refuses to plan while the device has yet to fetch the last plan."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._fetch_at = 0
        self.num_plans = 0

    def plan(self, *args: Any, **kwargs: Any) -> None:
        assert self._device.num_done >= self._fetch_at, "the plan that the device has yet to fetch is overwritten"
        self._planned = Plan(*args, **kwargs)
        self._planned.check()
        self._device.num_handed += 1
        self._fetch_at = self._device.num_handed
        self.num_plans += 1

    def run(self, q: Tensor, paged_kv_cache: Any) -> Tensor:
        plan, (k_cache, v_cache) = self._planned, paged_kv_cache
        assert q.is_contiguous() and k_cache.is_contiguous() and v_cache.is_contiguous()
        assert q.dtype == plan.q_data_type and k_cache.dtype == v_cache.dtype == (plan.kv_data_type or q.dtype)
        assert q.shape == (plan.qo_indptr[-1], plan.num_qo_heads, plan.head_dim_qk)
        assert k_cache.shape[1:] == v_cache.shape[1:] == (plan.num_kv_heads, plan.page_size, plan.head_dim_qk)
        out = torch.full_like(q, torch.nan)
        for rows, pages, num_kv in plan.spans():
            k_hsd, v_hsd = (self._gather(cache, pages, num_kv, plan.num_qo_heads) for cache in (k_cache, v_cache))
            q_hrd = q[rows.start : rows.stop].float().transpose(0, 1)
            scores = q_hrd @ k_hsd.transpose(1, 2) / math.sqrt(plan.head_dim_qk)
            scores.masked_fill_(~plan.seen(len(rows), num_kv), -math.inf)
            out[rows.start : rows.stop] = (scores.softmax(-1) @ v_hsd).transpose(0, 1).to(q.dtype)
        return out

    @staticmethod
    def _gather(cache: Tensor, pages: Tensor, num_kv: int, num_heads: int) -> Tensor:
        """[heads, num_kv, head_dim] of a cache [pages, KV heads, page_size, head_dim]."""
        held = cache[pages].transpose(0, 1).flatten(1, 2)[:, :num_kv].float()
        return held.repeat_interleave(num_heads // held.shape[0], 0)
