"""Encoder inputs are there when a chunk needs them, let go when nothing can, and not in one another's way (rule G)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import InvalidRequestError
from augury.types import EncoderInput, Outcome, Step
from scheduler_svc.core.encoder import EncoderCache, Span
from tests.scheduler.harness import Harness, Worker, generation, lane_config


def inputs(*spans: tuple[int, int]) -> tuple[EncoderInput, ...]:
    return tuple(EncoderInput(start=a, length=n, digest=b"%d-%d" % (a, n)) for a, n in spans)


class Seeing(Worker):
    """A worker with an encoder: it asserts that what a row reads was encoded, and that it is not asked for too much."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings: dict[bytes, int] = {}
        self.inputs: dict[int, tuple[EncoderInput, ...]] = {}
        self.most = 0

    def execute(self, step: Step) -> Outcome:
        for digest in step.discarded:
            del self.embeddings[digest]
        self.inputs.update({new.handle: new.inputs for new in step.fresh})
        fresh = [self.inputs[row.handle][index] for row in step.rows for index in row.encoded]
        assert sum(item.length for item in fresh) <= self.config.encoder_budget
        assert len({item.digest for item in fresh}) == len(fresh), "an input is encoded twice in a step"
        assert not {item.digest for item in fresh} & self.embeddings.keys(), "an input is encoded though it is kept"
        self.embeddings |= {item.digest: item.length for item in fresh}
        assert sum(self.embeddings.values()) <= self.config.encoder_cache
        for row in step.rows:
            held = self.held.get(row.handle)
            start = held.num_computed if held else next(n.num_computed for n in step.fresh if n.handle == row.handle)
            for item in self.inputs[row.handle]:
                if item.start < start + row.num_new and item.start + item.length > start:
                    assert item.digest in self.embeddings, "a row reads an input that is not encoded"
        return super().execute(step)


def lane(encoder: int, cache: int, lookahead: int = 0, **fields: Any) -> Harness:
    config = lane_config(lookahead=lookahead, encoder_budget=encoder, encoder_cache=cache, num_blocks=400, **fields)
    harness = Harness(config)
    harness.worker = Seeing(config)
    return harness


def chunks(harness: Harness) -> list[tuple[int, tuple[int, ...]]]:
    """What each step computed of one request, and which inputs it encoded."""
    return [(row.num_new, row.encoded) for step in harness.steps for row in step.rows]


def test_an_input_is_encoded_when_the_lookahead_reaches_it() -> None:
    """mtp_semantics §5.2, "EAGLE shift": an input at 100 is due once the token read ahead of a chunk is its first."""
    (item,) = inputs((100, 576))
    for size, due in ((98, ()), (99, ()), (100, (0,))):
        cache = EncoderCache(1024, 1024, lookahead=1)
        cache.begin()
        assert cache.admit(1, [item], Span(start=0, size=size, remaining=776)) == (size, due)


@pytest.mark.parametrize("lookahead", [1, 3])
def test_adjacent_inputs_of_which_one_fits_do_not_block_each_other(lookahead: int) -> None:
    harness = lane(900, 900, lookahead, budget=1024, prefix_caching=False)
    harness.submit(replace(generation(range(1220)), inputs=inputs((10, 600), (610, 600))))
    harness.run()
    assert all(size > 0 for size, _ in chunks(harness))
    assert [index for _, encoded in chunks(harness) for index in encoded] == [0, 1]
    harness.assert_told(1)


@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("gap", [0, 1, 2])
def test_an_input_that_does_not_fit_bounds_the_chunk_and_no_more(gap: int, lookahead: int) -> None:
    harness = lane(380, 300, lookahead, budget=100, prefix_caching=False)
    harness.submit(replace(generation(range(500)), inputs=inputs((10, 80), (100 + gap, 300))))
    harness.begin()
    assert chunks(harness) == [(100, (0,))]


def test_an_input_is_let_go_once_it_is_computed() -> None:
    cache = EncoderCache(100, 100, lookahead=0)
    (item,) = inputs((50, 100))
    cache.begin()
    cache.admit(1, [item], Span(start=0, size=120, remaining=160))
    cache.release(1, [item], 149)
    assert cache.num_held == 100
    cache.release(1, [item], 150)
    assert cache.num_held == 0


def test_an_image_that_comes_again_leaves_room_for_what_stands_between() -> None:
    harness = lane(8, 4, budget=30, prefix_caching=False)
    again = [EncoderInput(start=start, length=3, digest=b"again") for start in (2, 15)]
    harness.submit(replace(generation(range(24)), inputs=(again[0], *inputs((5, 4)), again[1])))
    harness.run()
    harness.assert_told(1)


def test_what_was_read_ahead_does_not_bar_what_comes_before_it() -> None:
    harness = lane(8, 3, 4, budget=7, prefix_caching=False)
    again = [EncoderInput(start=start, length=3, digest=b"again") for start in (10, 16)]
    harness.submit(replace(generation(range(28)), inputs=(again[0], *inputs((14, 1)), again[1])))
    harness.run()
    harness.assert_told(1)


def test_two_requests_share_what_shows_the_same() -> None:
    harness = lane(16, 16, budget=64, prefix_caching=False)
    wanted = replace(generation(range(20)), inputs=inputs((2, 16)))
    harness.submit(wanted)
    harness.submit(wanted)
    harness.run()
    assert [encoded for _, encoded in chunks(harness) if encoded] == [(0,)]


def test_a_text_goes_on_while_an_image_waits() -> None:
    harness = lane(20, 20, budget=30, prefix_caching=False)
    harness.submit(replace(generation(range(40)), inputs=inputs((5, 20))))
    harness.submit(replace(generation(range(50, 90)), inputs=inputs((0, 19))))
    text = harness.submit(generation(range(100, 105)))
    for _ in range(3):
        harness.iterate()
    assert harness.stories[text].tokens
    harness.run()
    for handle in (1, 2, text):
        harness.assert_told(handle)


@pytest.mark.parametrize(
    "wrong", [((0, 21),), ((5, 0),), ((0, 10), (9, 5)), ((35, 10),)], ids=["large", "empty", "overlap", "outside"]
)
def test_inputs_that_cannot_be_are_refused(wrong: Sequence[tuple[int, int]]) -> None:
    harness = lane(20, 30)
    with pytest.raises(InvalidRequestError):
        harness.submit(replace(generation(range(40)), inputs=inputs(*wrong)))


def test_what_an_image_shows_is_part_of_the_key() -> None:
    harness = lane(20, 40)
    shown = [replace(generation(range(40)), inputs=inputs((4, 8))) for _ in range(3)]
    other = EncoderInput(start=4, length=8, digest=b"another")
    for wanted in (*shown[:2], replace(shown[2], inputs=(other,))):
        harness.submit(wanted)
        harness.run()
    assert [harness.stories[handle].num_cached for handle in (1, 2, 3)] == [0, 36, 4]


@st.composite
def prompts_with_inputs(draw: st.DrawFn) -> list[Any]:
    wanted = []
    for _ in range(draw(st.integers(1, 4))):
        spans, end = [], 0
        for _ in range(draw(st.integers(0, 4))):
            start = end + draw(st.integers(0, 6))
            end = start + draw(st.integers(1, 12))
            spans.append((start, end - start))
        prompt = range(draw(st.integers(0, 3)), end + draw(st.integers(4, 12)))
        wanted.append(replace(generation(prompt), inputs=inputs(*spans)))
    return wanted


@given(
    wanted=prompts_with_inputs(),
    room=st.tuples(st.integers(12, 30), st.integers(12, 30)),
    lookahead=st.integers(0, 5),
    extra=st.integers(0, 30),
    fences=st.sets(st.integers(0, 20), max_size=2),
    num_blocks=st.integers(20, 80),
)
@settings(max_examples=150)
def test_everything_finishes_and_nothing_is_read_before_it_is_encoded(
    wanted: list[Any], room: tuple[int, int], lookahead: int, extra: int, fences: set[int], num_blocks: int
) -> None:
    config = lane_config(
        lookahead=lookahead,
        budget=lookahead + 2 + extra,
        encoder_budget=room[0],
        encoder_cache=room[1],
        num_blocks=num_blocks,
    )
    harness = Harness(config)
    worker = harness.worker = Seeing(config)
    for each in wanted:
        harness.submit(each)
    for iteration in range(22):
        if iteration in fences:
            harness.fence()
            worker.embeddings.clear()
        harness.iterate()
    harness.run()
    for handle in range(1, len(wanted) + 1):
        harness.assert_told(handle)
    assert harness.scheduler._encoder is not None and harness.scheduler._encoder.num_held == 0
