"""What FlashInfer is told means the right attention, and no plan is overwritten that the device has yet to fetch."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.cases import FAMILIES, GREEDY, PREFIX, WHOLE
from tests.worker.driver import Driver
from tests.worker.flashinfer_twin import Device, TwinMark, TwinWrapper
from tests.worker.test_attention import BLOCK_SIZE, heads, random_spans, random_tensors, sizes, windows
from tests.worker.tiny import BLOCK_SIZE as ENGINE_BLOCK_SIZE
from worker_svc.attention import make_attention
from worker_svc.attention.flashinfer import FlashInferAttention, lay_out
from worker_svc.batch import Span
from worker_svc.engine import Engine, EngineOptions, try_kernels
from worker_svc.kv import Kv
from worker_svc.model.description import read_architecture
from worker_svc.model.groups import View, make_layout

torch.set_num_threads(1)


def backend(device: Device) -> tuple[FlashInferAttention, list[TwinWrapper]]:
    """FlashInfer's backend with twins, and those that it makes."""
    made: list[TwinWrapper] = []

    def make() -> TwinWrapper:
        made.append(TwinWrapper(device))
        return made[-1]

    return FlashInferAttention(make, lambda: TwinMark(device)), made


@settings(max_examples=60)
@given(
    sizes=sizes,
    heads=heads,
    window=windows,
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_what_flashinfer_is_told_means_the_reference_attention(
    sizes: Sequence[tuple[int, int]], heads: tuple[int, int], window: int | None, dtype: torch.dtype, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    spans = random_spans(sizes, rng)
    tensors = [part.to(dtype) for part in random_tensors(spans, heads, window, rng)]
    view = View(group=0, window=window)
    expected = make_attention("reference").prepare(spans, BLOCK_SIZE)(*tensors, view)
    attention, made = backend(Device())
    got = attention.prepare(spans, BLOCK_SIZE)(*tensors, view)
    torch.testing.assert_close(got, expected, rtol=1e-5 if dtype == torch.float32 else 0.02, atol=1e-5)
    assert len(made) == 1


@settings(max_examples=200)
@given(sizes=sizes, window=windows, seed=st.integers(0, 1000))
def test_pages_are_those_that_a_query_sees_and_positions_keep_their_distance(
    sizes: Sequence[tuple[int, int]], window: int | None, seed: int
) -> None:
    spans = random_spans(sizes, torch.Generator().manual_seed(seed))
    pages = lay_out(spans, View(group=0, window=window), BLOCK_SIZE)
    assert pages.query_indptr[0] == pages.page_indptr[0] == 0
    for index, span in enumerate(spans):
        assert range(*pages.query_indptr[index : index + 2]) == range(span.start, span.start + span.num_new)
        held = pages.pages[pages.page_indptr[index] : pages.page_indptr[index + 1]]
        num_kv = (len(held) - 1) * BLOCK_SIZE + pages.last_page_lens[index]
        slots = [(page, place) for page in held for place in range(BLOCK_SIZE)][:num_kv]
        assert held == needed_blocks(span, window)
        for query in range(span.num_new):
            last = num_kv - span.num_new + query
            first = 0 if pages.window_left is None else max(0, last - pages.window_left)
            assert slots[first : last + 1] == seen_slots(span, query, window)


def seen_slots(span: Span, query: int, window: int | None) -> list[tuple[int, int]]:
    """(block, place) of each position that the query sees, one by one."""
    own = span.num_computed + query
    seen = [position for position in range(own + 1) if window is None or position > own - window]
    return [(span.blocks[0][position // BLOCK_SIZE], position % BLOCK_SIZE) for position in seen]


def needed_blocks(span: Span, window: int | None) -> list[int]:
    """In the order of the table."""
    seen = {block for query in range(span.num_new) for block, _ in seen_slots(span, query, window)}
    return [block for block in span.blocks[0] if block in seen]


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_says_the_same_with_flashinfer(family: str, depth: int, tmp_path: Path) -> None:
    FAMILIES[family](tmp_path)
    device = Device()
    attention, made = backend(device)
    options = EngineOptions(
        dtype="float32", block_size=ENGINE_BLOCK_SIZE, num_blocks=300, attention="reference", depth=depth
    )
    expected = crowd(Engine.load(tmp_path, options), device)
    with patch("worker_svc.engine.make_attention", lambda *_: attention):
        engine = Engine.load(tmp_path, options)
    assert crowd(engine, device) == expected
    num_views = len(set(engine.kv.layout.views))
    assert len(made) <= num_views * 4
    assert sum(wrapper.num_plans for wrapper in made) > 10


def crowd(engine: Engine, device: Device) -> list[list[int]]:
    """Texts of requests in chunks. The device is done with a step when it ends, and not before."""
    driver = Driver(engine, 1)
    for index in range(4):
        driver.add(PREFIX[: 20 + 5 * index], 10, GREEDY)
    chunks = iter((7, 9, WHOLE))
    while left := [index for index, request in enumerate(driver.requests) if not request.done]:
        driver.step(dict.fromkeys(left, next(chunks, WHOLE)))
        device.num_done = device.num_handed
    return [request.emitted for request in driver.requests]


def test_a_plan_serves_all_layers_of_a_view_until_the_next_batch() -> None:
    rng = torch.Generator().manual_seed(1)
    spans = random_spans([(3, 10), (1, 4)], rng)
    tensors = random_tensors(spans, (4, 2), None, rng)
    device = Device()
    attention, made = backend(device)
    old = attention.prepare(spans, BLOCK_SIZE)
    for window in (None, 3, None, 3):
        old(*tensors, View(group=0, window=window))
    assert [wrapper.num_plans for wrapper in made] == [1, 1]
    attend = attention.prepare(spans, BLOCK_SIZE)
    with pytest.raises(AssertionError, match="prepared meanwhile"):
        old(*tensors, View(group=0, window=None))
    attend(*tensors, View(group=0, window=None))
    assert [wrapper.num_plans for wrapper in made] == [1, 1, 1]  # the device has fetched none yet
    device.num_done = 1
    attention.prepare(spans, BLOCK_SIZE)(*tensors, View(group=0, window=None))
    assert [wrapper.num_plans for wrapper in made] == [2, 1, 1]


def test_kernels_of_every_view_are_tried_before_there_are_requests(tmp_path: Path) -> None:
    FAMILIES["chained, windows"](tmp_path)
    architecture = read_architecture(tmp_path)
    kv = Kv(architecture, make_layout(architecture, 3, ENGINE_BLOCK_SIZE), torch.float32, 2)
    attention, made = backend(Device())
    try_kernels(architecture, kv, attention)
    assert sum(wrapper.num_plans for wrapper in made) == 2 * len(set(kv.layout.views)) == 4
    assert all(not part[0].any() for layer in kv.layers for part in layer)
