"""Attention by FlashInfer: planned once for the layers of a view, then run in each. The one file that imports it."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from worker_svc.attention.port import Attend
from worker_svc.batch import Span, reached_blocks
from worker_svc.device import CPU
from worker_svc.model.groups import View

_MODULE = "flashinfer"
_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_DIMS = (64, 128, 256)
_CAPABILITY = (8, 0)
"""The first with bfloat16."""
_WORKSPACE_BYTES = 384 << 20
"""Holds the partial results of split contexts: for all blocks of threads, two for each of 132 multiprocessors (H100),
128 queries by head_dim 128 in float32 for each of the up to 16 query heads that share a KV head, and some."""
_NO_WINDOW = -1
"""FlashInfer's word for it."""


class Wrapper(Protocol):
    """Of ``flashinfer.BatchPrefillWithPagedKVCacheWrapper`` (0.7) what is called, with its documented arguments."""

    plan: Callable[..., None]
    run: Callable[..., Tensor]


class Mark(Protocol):
    """A point in the device's work, as ``torch.cuda.Event``."""

    def record(self) -> None: ...

    def query(self) -> bool:
        """Whether the device has passed it. True where it was not recorded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Where spans of a batch have their queries and the KV that they reach. ``..._indptr`` hold where each span's part
    begins, and behind all where the last one ends; ``last_page_lens`` are the tokens in a span's last page.

    ``window_left`` is how many positions before its own a query sees; None is all.
    """

    query_indptr: list[int]
    page_indptr: list[int]
    pages: list[int]
    last_page_lens: list[int]
    window_left: int | None


def lay_out(spans: Sequence[Span], view: View, block_size: int) -> Pages:
    """The pages of ``spans``, which stand in order.

    Pages that a window has passed are left out. So positions are shifted by whole pages, queries and keys alike: causal
    masks, which align the last query with the last key, and windows stay what they are.
    """
    query_indptr, page_indptr = [0], [0]
    pages: list[int] = []
    for span in spans:
        assert span.start == query_indptr[-1]
        query_indptr.append(span.start + span.num_new)
        pages.extend(reached_blocks(span, view, block_size))
        page_indptr.append(len(pages))
    return Pages(
        query_indptr=query_indptr,
        page_indptr=page_indptr,
        pages=pages,
        last_page_lens=[(span.num_context - 1) % block_size + 1 for span in spans],
        window_left=None if view.window is None else view.window - 1,
    )


class _Kernel:
    """A wrapper and the plan that it holds."""

    def __init__(self, wrapper: Wrapper, fetched: Mark) -> None:
        self._wrapper = wrapper
        self._fetched = fetched

    @property
    def idle(self) -> bool:
        """Whether it may plan anew: the device fetches a plan later, from memory that the next one overwrites."""
        return self._fetched.query()

    def plan(self, pages: Pages, queries: Tensor, keys: Tensor) -> None:
        num_heads, head_dim = queries.shape[1:]
        lists = pages.query_indptr, pages.page_indptr, pages.pages, pages.last_page_lens
        self._wrapper.plan(
            *(torch.tensor(values, dtype=torch.int32, device=CPU) for values in lists),
            num_heads,
            keys.shape[1],
            head_dim,
            keys.shape[2],
            causal=True,
            window_left=_NO_WINDOW if pages.window_left is None else pages.window_left,
            q_data_type=queries.dtype,
            kv_data_type=keys.dtype,
        )
        self._fetched.record()

    def run(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return self._wrapper.run(queries.contiguous(), (keys, values))


class FlashInferAttention:
    """What ``prepare`` gives holds until it is called again.

    ``make_wrapper`` gives wrappers for the layout HND; ``make_mark`` marks in the stream that they work in.
    """

    def __init__(self, make_wrapper: Callable[[], Wrapper], make_mark: Callable[[], Mark]) -> None:
        self._make_wrapper = make_wrapper
        self._make_mark = make_mark
        self._spare: list[_Kernel] = []
        self._planned: dict[View, _Kernel] = {}

    def prepare(self, spans: Sequence[Span], block_size: int) -> Attend:
        self._spare += self._planned.values()
        planned: dict[View, _Kernel] = {}
        self._planned = planned

        def attend(queries: Tensor, keys: Tensor, values: Tensor, view: View) -> Tensor:
            assert planned is self._planned, "another batch was prepared meanwhile"
            if view not in planned:
                kernel = self._take()
                kernel.plan(lay_out(spans, view, block_size), queries, keys)
                planned[view] = kernel
            return planned[view].run(queries, keys, values)

        return attend

    def _take(self) -> _Kernel:
        """An idle kernel; there are as many as the host gets plans ahead of the device."""
        for index, kernel in enumerate(self._spare):
            if kernel.idle:
                return self._spare.pop(index)
        return _Kernel(self._make_wrapper(), self._make_mark())


def obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why FlashInfer does not run queries of ``dtype`` and ``head_dim`` on ``device``; None where it does."""
    if device.type != "cuda":
        return f"it needs CUDA, not {device}"
    if dtype not in _DTYPES:
        return f"it does not compute in {dtype}"
    if head_dim not in _HEAD_DIMS:
        return f"it has no kernels for heads of {head_dim}"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} is too old for it"
    if importlib.util.find_spec(_MODULE) is None:
        return "flashinfer-python is not installed"
    return None


def on_device(device: torch.device) -> FlashInferAttention:
    """FlashInfer in the current stream of ``device``, which becomes the thread's device. It must run there.

    Wrappers share the workspace, because none runs beside another.
    """
    torch.cuda.set_device(device)
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    wrapper = importlib.import_module(_MODULE).BatchPrefillWithPagedKVCacheWrapper
    return FlashInferAttention(partial(wrapper, workspace, "HND"), torch.cuda.Event)
