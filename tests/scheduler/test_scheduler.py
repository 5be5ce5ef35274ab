"""One lane from admission to the end: admission, ends, budgets, refusals, failures, fences."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import ContextLengthError, InternalError
from augury.types import Ended, EndReason, Grant
from scheduler_svc.core.policy import Policy
from tests.scheduler.harness import Harness, continuation, generation, lane_config


def test_a_prompt_of_one_token_is_answered() -> None:
    lane = Harness()
    handle = lane.submit(generation([5], max_tokens=3))
    lane.run()
    lane.assert_told(handle)
    assert len(lane.stories[handle].tokens) == 3
    lane.assert_whole()


def test_a_request_is_admitted_with_slots_for_its_whole_prompt() -> None:
    lane = Harness(lane_config(budget=8, block_size=4))
    lane.submit(generation(range(30)))
    step = lane.begin()
    assert step is not None
    assert [list(map(len, new.blocks)) for new in step.fresh] == [[8]]
    assert [row.num_new for row in step.rows] == [8]


def test_a_prompt_that_does_not_fit_whole_waits_and_is_not_overtaken() -> None:
    lane = Harness(lane_config(num_blocks=10, block_size=4, prefix_caching=False))
    large = [lane.submit(generation(range(20), max_tokens=8)) for _ in range(2)]
    small = lane.submit(generation([1], max_tokens=1))
    lane.iterate()
    assert [r.handle for r in lane.scheduler.running.items] == large[:1]
    assert [r.handle for r in lane.scheduler.waiting.items] == [large[1], small]
    lane.run()
    for handle in (*large, small):
        lane.assert_told(handle)


def test_a_request_that_is_denied_its_growth_sits_the_iteration_out() -> None:
    lane = Harness(lane_config(block_size=4))
    growing, other = lane.submit(generation(range(4))), lane.submit(generation(range(2)))
    lane.iterate()
    proposal = lane.scheduler.propose()
    assert proposal is not None
    assert [reserve.lease for reserve in proposal.reserves] == [growing]
    step = lane.scheduler.dispatch(Grant(epoch=1, seq=proposal.seq, reserves=(None,), num_available=0))
    assert step is not None
    assert [row.handle for row in step.rows] == [other]


def test_decodes_run_beside_a_chunked_prompt() -> None:
    lane = Harness(lane_config(budget=8))
    decoding = lane.submit(generation([1, 2], max_tokens=20))
    lane.iterate()
    lane.submit(generation(range(20), max_tokens=1))
    sizes = []
    for _ in range(3):
        lane.iterate()
        sizes.append([row.num_new for row in lane.steps[-1].rows])
    assert sizes == [[1, 7], [1, 7], [1, 6]]
    assert len(lane.stories[decoding].tokens) == 4


@given(num_prompt=st.integers(1, 40), max_tokens=st.integers(1, 10), over=st.integers(1, 5))
def test_what_can_never_fit_is_refused_with_the_numbers(num_prompt: int, max_tokens: int, over: int) -> None:
    max_len = num_prompt + max_tokens - over
    lane = Harness(lane_config(max_model_len=max_len))
    with pytest.raises(ContextLengthError, match=rf"{num_prompt} .* {max_tokens} .* {max_len} "):
        lane.submit(generation(range(num_prompt), max_tokens=max_tokens))
    assert not lane.scheduler.has_work


@given(lookahead=st.integers(0, 8), num_blocks=st.integers(6, 12), block_size=st.integers(1, 6))
def test_the_longest_request_that_is_accepted_also_finishes(lookahead: int, num_blocks: int, block_size: int) -> None:
    config = lane_config(num_blocks=num_blocks, block_size=block_size, lookahead=lookahead, max_drafts=lookahead)
    if config.max_len < 2:
        return
    lane = Harness(config)
    handle = lane.submit(generation([1], max_tokens=config.max_len - 1))
    lane.run()
    lane.assert_told(handle)
    assert len(lane.stories[handle].tokens) == config.max_len - 1
    with pytest.raises(ContextLengthError):
        lane.submit(generation([1], max_tokens=config.max_len))


@pytest.mark.parametrize(("lookahead", "max_drafts"), [(0, 0), (1, 0), (1, 1), (1, 5), (2, 2), (8, 8)])
def test_a_budget_that_cannot_advance_a_prompt_beside_a_decode_is_refused(lookahead: int, max_drafts: int) -> None:
    least = max(lookahead, 1) + 1 + max_drafts
    lane_config(budget=least, lookahead=lookahead, max_drafts=max_drafts)
    with pytest.raises(ValueError, match=r"scheduler\.max_batched_tokens"):
        lane_config(budget=least - 1, lookahead=lookahead, max_drafts=max_drafts)


def test_a_stop_token_ends_the_text_and_is_delivered() -> None:
    text = continuation([1, 2, 3], 5)
    lane = Harness()
    handle = lane.submit(generation([1, 2, 3], max_tokens=9, stop_token_ids=frozenset([text[3]])))
    lane.run()
    lane.assert_told(handle, EndReason.STOP)
    assert tuple(lane.stories[handle].tokens) == text[:4]


@pytest.mark.parametrize(("min_tokens", "num_tokens"), [(0, 3), (2, 3), (3, 9)])
def test_a_stop_token_within_min_tokens_does_not_end_the_text(min_tokens: int, num_tokens: int) -> None:
    text = continuation([1, 2, 3], 9)
    assert text.count(text[2]) == 1
    lane = Harness()
    handle = lane.submit(
        generation([1, 2, 3], max_tokens=9, min_tokens=min_tokens, stop_token_ids=frozenset([text[2]]))
    )
    lane.run()
    assert tuple(lane.stories[handle].tokens) == text[:num_tokens]


def test_a_stop_token_at_the_last_place_counts_as_stop() -> None:
    text = continuation([1, 2, 3], 4)
    lane = Harness()
    handle = lane.submit(generation([1, 2, 3], max_tokens=4, stop_token_ids=frozenset([text[3]])))
    lane.run()
    lane.assert_told(handle, EndReason.STOP)


@given(num_emitted=st.integers(0, 7), max_tokens=st.integers(8, 12))
def test_a_continuation_goes_on_after_its_emitted_tokens(num_emitted: int, max_tokens: int) -> None:
    lane = Harness()
    emitted = continuation([1, 2, 3], num_emitted)
    handle = lane.submit(generation([1, 2, 3], emitted=emitted, max_tokens=max_tokens))
    lane.run()
    lane.assert_told(handle)
    assert len(lane.stories[handle].tokens) == max_tokens


def test_a_refused_hit_is_recomputed_and_its_keys_are_forgotten() -> None:
    lane = Harness()
    first = lane.submit(generation(range(20)))
    lane.run()
    lane.worker.tags.clear()
    second = lane.submit(generation(range(20)))
    lane.run()
    assert lane.scheduler.counters.num_refused == 1
    third = lane.submit(generation(range(20)))
    lane.run()
    assert lane.scheduler.counters.num_refused == 1
    for handle in (first, second, third):
        lane.assert_told(handle)
    assert [len(new.hits) for step in lane.steps for new in step.fresh] == [0, 4, 0, 4]
    assert [lane.stories[handle].num_cached for handle in (first, second, third)] == [0, 0, 16]
    lane.assert_whole()


def test_a_failed_row_ends_its_request_and_no_other() -> None:
    lane = Harness()
    bad, good = lane.submit(generation([1, 2])), lane.submit(generation([1, 3]))
    lane.worker.failing.add(bad)
    lane.run()
    ended = lane.stories[bad].ended
    assert ended is not None
    assert (ended.reason, ended.error_code) == (EndReason.FAILED, "not_finite")
    assert ended.error_message
    lane.assert_told(good)
    lane.assert_whole()


def test_rows_that_were_refused_or_failed_seal_nothing() -> None:
    lane = Harness()
    lane.submit(generation(range(20)))
    lane.run()
    lane.worker.tags.clear()
    refused, failed = lane.submit(generation(range(20))), lane.submit(generation(range(50, 70)))
    lane.worker.failing.add(failed)
    lane.iterate()
    lane.propose()
    proposal = lane.proposals[-1]
    assert proposal is not None
    assert sorted(proposal.releases) == [refused, failed]
    assert proposal.seals == ()


@pytest.mark.parametrize("num_iterations", [0, 1, 3])
def test_a_request_failed_from_outside_ends_once_with_that_error(num_iterations: int) -> None:
    lane = Harness()
    bad, good = lane.submit(generation([1, 2])), lane.submit(generation([1, 3]))
    for _ in range(num_iterations):
        lane.iterate()
    deltas = lane.scheduler.fail(bad, InternalError("broken"))
    assert [(delta.ticket, delta.ended) for delta in deltas] == [
        (bad, Ended(reason=EndReason.FAILED, error_code="internal", error_message="broken"))
    ]
    assert lane.scheduler.fail(bad, InternalError("again")) == []
    lane.run()
    lane.assert_told(good)
    lane.assert_whole()


@given(before=st.integers(0, 8), in_flight=st.booleans())
def test_a_fence_restarts_everything_with_the_tokens_it_has(before: int, in_flight: bool) -> None:
    lane = Harness(lane_config(budget=8))
    handles = [lane.submit(generation(range(n, n + 12), max_tokens=8)) for n in range(3)]
    for _ in range(before):
        lane.iterate()
    if in_flight:
        lane.begin()
    lane.fence()
    step = lane.begin()
    assert step is not None
    assert step.epoch == 2
    assert [new.handle for new in step.fresh] == sorted(new.handle for new in step.fresh)
    lane.finish(step)
    lane.run()
    for handle in handles:
        lane.assert_told(handle)
        assert len(lane.stories[handle].tokens) == 8
    lane.assert_whole()


def test_a_fence_between_propose_and_dispatch_leaks_nothing() -> None:
    lane = Harness()
    handle = lane.submit(generation(range(9)))
    lane.propose()
    lane.fence()
    lane.run()
    lane.assert_told(handle)
    lane.assert_whole()


@pytest.mark.parametrize("in_flight", [False, True])
def test_evacuated_requests_come_in_policy_order_with_their_tokens(in_flight: bool) -> None:
    config = lane_config(max_running=2, policy=Policy.PRIORITY)
    lane = Harness(config)
    for priority in (2, 0, 1, 0):
        lane.submit(generation([priority, 1], max_tokens=20, priority=priority))
    for _ in range(4):
        lane.iterate()
    if in_flight:
        lane.begin()
    gone = lane.scheduler.evacuate()
    assert [(r.generation.priority, r.handle) for r in gone] == [(0, 2), (0, 4), (1, 3), (2, 1)]
    assert [r.num_emitted for r in gone] == [4, 4, 0, 0]
    assert not lane.scheduler.has_work
    for request in gone:
        assert tuple(request.tokens[2:]) == continuation(request.generation.prompt, request.num_emitted)


def test_a_request_denied_on_one_lane_runs_on_another_with_as_many_blocks() -> None:
    crowded = Harness(lane_config(num_blocks=13, block_size=4))
    crowded.submit(generation(range(13), max_tokens=9))
    crowded.iterate()
    denied = crowded.submit(generation(range(50, 83), max_tokens=2))
    crowded.iterate()
    request = crowded.scheduler.waiting.items[0]
    assert request.denied_at == 8
    crowded.scheduler.evacuate()
    quiet = Harness(lane_config(num_blocks=9, block_size=8))
    quiet.stories[denied] = crowded.stories[denied]
    quiet.scheduler.submit(request)
    quiet.run()
    quiet.assert_told(denied)


def test_the_policy_decides_who_is_admitted_first() -> None:
    lane = Harness(lane_config(max_running=1, policy=Policy.PRIORITY))
    late, urgent = (
        lane.submit(generation([1], priority=5)),
        lane.submit(generation([2], priority=-5)),
    )
    lane.run()
    assert [new.handle for step in lane.steps for new in step.fresh] == [urgent, late]


def test_no_more_requests_run_than_allowed() -> None:
    lane = Harness(lane_config(max_running=3))
    for n in range(8):
        lane.submit(generation([n], max_tokens=5))
    lane.run()
    assert max(len(step.rows) for step in lane.steps) == 3


def test_counters_count_tokens() -> None:
    lane = Harness(lane_config(block_size=4))
    for _ in range(2):
        lane.submit(generation(range(10), max_tokens=5))
        lane.run()
    counters = lane.scheduler.counters
    assert (counters.prompt_tokens, counters.generation_tokens) == (20, 10)
    assert (counters.query_tokens, counters.hit_tokens) == (20, 8)
    assert (counters.num_iterations, counters.num_preemptions, counters.num_refused) == (10, 0, 0)
    assert counters.total_iteration_tokens == 10 + 4 + 2 + 4


def test_step_and_proposal_numbers_have_no_gaps() -> None:
    lane = Harness(lane_config(num_blocks=9))
    for n in range(5):
        lane.submit(generation([n] * 9, max_tokens=9))
    lane.run()
    assert all(later.seq == earlier.seq + 1 for earlier, later in pairwise(lane.steps))


def test_an_idle_lane_proposes_and_runs_nothing() -> None:
    lane = Harness()
    assert lane.begin() is None
    assert not lane.scheduler.has_work
