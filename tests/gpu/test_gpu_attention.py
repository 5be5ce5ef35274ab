"""On a GPU every attention backend gives what the reference gives on the processor."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.test_attention import BLOCK_SIZE, heads, random_spans, random_tensors, sizes, windows
from worker_svc.attention import make_attention
from worker_svc.attention.port import Attention
from worker_svc.device import pick_device
from worker_svc.model.groups import View

pytestmark = pytest.mark.gpu

TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Some times the distance of two neighbours at 1."""


def check(
    attention: Attention,
    sizes: Sequence[tuple[int, int]],
    heads: tuple[int, int],
    dtype: torch.dtype,
    head_dim: int,
    seed: int,
) -> None:
    """Raises AssertionError where the backend does not give what the reference gives, over layers of three windows."""
    rng = torch.Generator().manual_seed(seed)
    spans, device = random_spans(sizes, rng), pick_device("cuda")
    attend = attention.prepare(spans, BLOCK_SIZE)
    for window in (None, 3, 8, None):
        tensors = [part.to(dtype) for part in random_tensors(spans, heads, window, rng, head_dim)]
        view = View(group=0, window=window)
        expected = make_attention("reference").prepare(spans, BLOCK_SIZE)(*tensors, view)
        got = attend(*(part.to(device) for part in tensors), view)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def flashinfer() -> Attention:
    return make_attention("flashinfer", pick_device("cuda"))


many = st.lists(st.tuples(st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=2)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@settings(max_examples=40)
@given(sizes=sizes | many, heads=heads, seed=st.integers(0, 1000))
def test_flashinfer_equals_the_reference(
    flashinfer: Attention,
    sizes: Sequence[tuple[int, int]],
    heads: tuple[int, int],
    dtype: torch.dtype,
    head_dim: int,
    seed: int,
) -> None:
    check(flashinfer, sizes, heads, dtype, head_dim, seed)


@pytest.mark.parametrize("name", ["cpu", "reference"])
@settings(max_examples=20)
@given(sizes=sizes, heads=heads, dtype=st.sampled_from(list(TOLERANCES)), seed=st.integers(0, 1000))
def test_plain_torch_equals_the_reference_there(
    name: str, sizes: Sequence[tuple[int, int]], heads: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    check(make_attention(name, pick_device("cuda")), sizes, heads, dtype, 8, seed)


@settings(max_examples=20)
@given(window=windows, seed=st.integers(0, 1000))
def test_many_plans_in_a_row_do_not_disturb_one_another(flashinfer: Attention, window: int | None, seed: int) -> None:
    """The host plans ahead of the device: no result is looked at before all were asked for."""
    rng, device = torch.Generator().manual_seed(seed), pick_device("cuda")
    view, asked = View(group=0, window=window), []
    for number in range(12):
        spans = random_spans([(1, number), (1 + number, 40 - number)], rng)
        tensors = [part.half() for part in random_tensors(spans, (4, 2), window, rng, 64)]
        there = [part.to(device) for part in tensors]
        asked.append((flashinfer.prepare(spans, BLOCK_SIZE)(*there, view), spans, tensors))
    for got, spans, tensors in asked:
        expected = make_attention("reference").prepare(spans, BLOCK_SIZE)(*tensors, view)
        torch.testing.assert_close(got.cpu(), expected, rtol=4e-3, atol=4e-3)
