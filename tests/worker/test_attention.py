"""Every attention backend gives what the reference gives, whatever lies in blocks that are not the request's."""

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_svc.attention import make_attention
from worker_svc.batch import Span
from worker_svc.model.groups import View

torch.set_num_threads(1)

BLOCK_SIZE, NUM_BLOCKS, HEAD_DIM = 4, 64, 8
WHOLE = 1 << 20

sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=5)
heads = st.sampled_from([(4, 4), (4, 2), (4, 1), (9, 3)])
windows = st.sampled_from([None, 1, 3, 8, 100])


@settings(max_examples=60, deadline=None)
@given(sizes=sizes, heads=heads, window=windows, seed=st.integers(0, 1000))
def test_cpu_attention_equals_reference(
    sizes: Sequence[tuple[int, int]], heads: tuple[int, int], window: int | None, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    spans = random_spans(sizes, rng)
    queries, keys, values = random_tensors(spans, heads, window, rng)
    expected = make_attention("reference").prepare(spans, BLOCK_SIZE)(
        queries, keys, values, View(group=0, window=window)
    )
    assert expected.isfinite().all()
    attend = make_attention("cpu").prepare(spans, BLOCK_SIZE)
    for again in (window, None, window):  # layers of several windows share one preparation
        got = attend(queries, keys, values, View(group=0, window=again))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(sizes=sizes, heads=heads, window=windows, seed=st.integers(0, 1000))
def test_the_reference_is_softmax_attention(
    sizes: Sequence[tuple[int, int]], heads: tuple[int, int], window: int | None, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    spans = random_spans(sizes, rng)
    queries, keys, values = random_tensors(spans, heads, window, rng)
    got = make_attention("reference").prepare(spans, BLOCK_SIZE)(queries, keys, values, View(group=0, window=window))
    for span in spans:
        for offset in range(span.num_new):
            end = span.num_computed + offset + 1
            seen = [position for position in range(end) if window is None or end - position <= window]
            places = [divmod(position, BLOCK_SIZE) for position in seen]
            for head in range(heads[0]):
                shared = head // (heads[0] // heads[1])
                k = torch.stack([keys[span.blocks[0][block], shared, place] for block, place in places])
                v = torch.stack([values[span.blocks[0][block], shared, place] for block, place in places])
                weights = (k @ queries[span.start + offset, head] / HEAD_DIM**0.5).exp()
                expected = (weights / weights.sum()) @ v
                torch.testing.assert_close(got[span.start + offset, head], expected, rtol=1e-4, atol=1e-5)


def random_spans(sizes: Sequence[tuple[int, int]], rng: torch.Generator) -> list[Span]:
    """Spans of (new, computed) tokens over scattered blocks."""
    blocks = (torch.randperm(NUM_BLOCKS - 1, generator=rng) + 1).tolist()
    spans, start = [], 0
    for num_new, num_computed in sizes:
        num_blocks = -(-(num_new + num_computed) // BLOCK_SIZE)
        spans.append(
            Span(
                start=start,
                num_new=num_new,
                num_context=num_new + num_computed,
                blocks=[[blocks.pop() for _ in range(num_blocks)]],
            )
        )
        start += num_new
    return spans


def random_tensors(
    spans: Sequence[Span], heads: tuple[int, int], window: int | None, rng: torch.Generator, head_dim: int = HEAD_DIM
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values; the cache is NaN in foreign blocks and those that the window has passed, and zero in
    the rest of a block, as after a claim.
    """
    queries = torch.randn(sum(span.num_new for span in spans), heads[0], head_dim, generator=rng)
    caches = []
    for _ in range(2):
        cache = torch.full((NUM_BLOCKS, heads[1], BLOCK_SIZE, head_dim), torch.nan)
        cache[0] = 0
        for span in spans:
            num_passed = max(0, span.num_computed + 1 - (window or WHOLE)) // BLOCK_SIZE
            for position in range(num_passed * BLOCK_SIZE, len(span.blocks[0]) * BLOCK_SIZE):
                block, place = span.blocks[0][position // BLOCK_SIZE], position % BLOCK_SIZE
                content = torch.randn(heads[1], head_dim, generator=rng)
                cache[block, :, place] = content if position < span.num_context else 0
        caches.append(cache)
    return queries, caches[0], caches[1]
