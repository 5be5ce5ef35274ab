"""Drafts in one lane: how many are verified, what they bring, what is counted (mtp_semantics §2.3, §3.7, §5.1)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.types import EndReason
from scheduler_svc.core.chunking import min_budget
from scheduler_svc.core.lane import KeyLookahead
from tests.scheduler.harness import Harness, continuation, generation, lane_config

Sizes = tuple[int, int]
"""(new tokens, drafts) of one row."""


def eight_modules(**fields: Any) -> Harness:
    return Harness(lane_config(block_size=16, lookahead=8, max_drafts=8, **fields))


def sizes(lane: Harness, handle: int) -> list[Sizes]:
    return [(row.num_new, row.num_drafts) for step in lane.steps for row in step.rows if row.handle == handle]


def test_the_second_decode_verifies_what_the_budget_leaves() -> None:
    lane = Harness(lane_config(lookahead=1, max_drafts=8, budget=12))
    handles = [lane.submit(generation([n], max_tokens=20)) for n in range(2)]
    lane.iterate()
    lane.iterate()
    assert [sizes(lane, handle)[-1] for handle in handles] == [(1, 8), (1, 2)]


def test_drafts_are_trimmed_towards_the_last_token() -> None:
    lane = eight_modules(max_model_len=40)
    handle = lane.submit(generation(range(30), max_tokens=10))
    lane.worker.right[handle] = [2, 2, 2]
    lane.run()
    lane.assert_told(handle)
    assert sizes(lane, handle) == [(30, 0), (1, 8), (1, 5), (1, 2)]
    assert len(lane.stories[handle].tokens) == 10


def test_an_unfinished_prompt_verifies_no_drafts_even_where_the_worker_holds_some() -> None:
    lane = Harness(lane_config(lookahead=3, max_drafts=3, budget=50))
    handle = lane.submit(generation(range(80), max_tokens=9))
    step = lane.begin()
    assert step is not None
    lane.scheduler.apply(replace(lane.worker.execute(step), num_drafts=(3,)))
    lane.iterate()
    lane.iterate()
    assert sizes(lane, handle) == [(50, 0), (30, 0), (1, 3)]


@pytest.mark.parametrize(
    ("steps", "totals", "accepted_at", "accepted_lengths"),
    [
        ([(3, 3)], (1, 3), [1, 1, 1], [0, 0, 0, 1]),
        ([(3, 1)], (1, 3), [1, 0, 0], [0, 1, 0, 0]),
        ([(2, 2), (1, 1)], (2, 3), [2, 1], [0, 1, 1]),
        ([(1, 1)], (1, 1), [1], [0, 1]),
        ([(0, 0)], (0, 0), [], []),
        ([(3, 2), (3, 1)], (2, 6), [2, 1, 0], [0, 1, 1, 0]),
    ],
)
def test_counts_of_verified_and_accepted_drafts(
    steps: list[Sizes], totals: Sizes, accepted_at: list[int], accepted_lengths: list[int]
) -> None:
    """The stats table: one request for each of ``steps``, which verifies so many drafts of which so many are right."""
    lane = Harness(lane_config(lookahead=3, max_drafts=3))
    for n, (num_drafts, num_right) in enumerate(steps):
        handle = lane.submit(generation([n], max_tokens=9, max_drafts=num_drafts))
        lane.worker.right[handle] = [num_right]
    lane.iterate()
    deltas = lane.iterate()
    assert [(delta.num_drafts, delta.num_accepted) for delta in deltas] == steps
    assert [len(delta.tokens) for delta in deltas] == [1 + num_right for _, num_right in steps]
    counters = lane.scheduler.counters
    assert (counters.num_drafts, counters.draft_tokens) == totals
    assert (counters.accepted_at, counters.accepted_lengths) == (accepted_at, accepted_lengths)


@pytest.mark.parametrize("num_before", range(4))
def test_a_stop_inside_a_step_cuts_text_and_counts(num_before: int) -> None:
    text = continuation([1, 2, 3], 9)
    assert len(set(text)) == len(text)
    lane = Harness(lane_config(lookahead=4, max_drafts=4))
    handle = lane.submit(generation([1, 2, 3], max_tokens=9, stop_token_ids=frozenset([text[1 + num_before]])))
    lane.worker.right[handle] = [4]
    lane.run()
    lane.assert_told(handle, EndReason.STOP)
    assert tuple(lane.stories[handle].tokens) == text[: 2 + num_before]
    counters = lane.scheduler.counters
    assert (counters.draft_tokens, sum(counters.accepted_at)) == (4, 1 + num_before)
    assert counters.generation_tokens == 2 + num_before
    lane.assert_whole()


@pytest.mark.parametrize(
    ("mode", "num_sealed"), [(KeyLookahead.AUTO, [1, 1, 1, 2, 2]), (KeyLookahead.OFF, [0, 0, 1, 1, 2])]
)
def test_blocks_are_sealed_as_drafts_come_true(mode: KeyLookahead, num_sealed: list[int]) -> None:
    """Prompt of 20. By plain keys a block has its name once the block after it is known as well."""
    lane = Harness(lane_config(block_size=16, lookahead=8, max_drafts=8, key_lookahead=mode))
    handle = lane.submit(generation(range(20), max_tokens=90))
    lane.worker.right[handle] = [8, 0, 3, 8, 8]
    lane.iterate()
    counts = []
    for _ in num_sealed:
        lane.iterate()
        (request,) = lane.scheduler.running.items
        counts.append(request.tables[0].num_sealed)
    assert counts == num_sealed


def test_a_lease_holds_slots_for_drafts_behind_the_known_tokens() -> None:
    lane = Harness(lane_config(lookahead=3, max_drafts=5, block_size=4))
    handle = lane.submit(generation(range(6), max_tokens=40))
    lane.worker.right[handle] = [5, 0, 2, 5, 5, 1]
    while (step := lane.begin()) is not None:
        (request,) = lane.scheduler.running.items
        assert len(request.tables[0].blocks) == -(-(len(request.tokens) + 5) // 4)
        lane.finish(step)
    lane.assert_told(handle)


@given(
    lookahead=st.integers(1, 4),
    extra=st.integers(0, 9),
    block_size=st.integers(1, 6),
    asked=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 30), st.none() | st.integers(0, 5)), min_size=1, max_size=4
    ),
    right=st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=4, max_size=4),
)
def test_drafts_change_the_number_of_steps_and_nothing_else(
    lookahead: int,
    extra: int,
    block_size: int,
    asked: list[tuple[int, int, int | None]],
    right: list[list[int]],
) -> None:
    config = lane_config(
        budget=min_budget(lookahead, 4) + extra,
        lookahead=lookahead,
        max_drafts=4,
        block_size=block_size,
        num_blocks=2 + 48 // block_size,
    )
    lane = Harness(config)
    for n, (num_prompt, max_tokens, max_drafts) in enumerate(asked):
        handle = lane.submit(generation(range(n, n + num_prompt), max_tokens=max_tokens, max_drafts=max_drafts))
        lane.worker.right[handle] = list(right[n])
    lane.run()
    for handle, (_, max_tokens, max_drafts) in enumerate(asked, 1):
        lane.assert_told(handle)
        assert len(lane.stories[handle].tokens) == max_tokens
        most = 4 if max_drafts is None else min(max_drafts, 4)
        assert all(num_drafts <= min(most, max_tokens - 1) for _, num_drafts in sizes(lane, handle))
    lane.assert_whole()
