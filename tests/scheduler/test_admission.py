"""Who is let in, so that nobody has to leave: room for the whole sequence, in window groups as well."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import ContextLengthError, InvalidRequestError
from augury.geometry import KvGroup, peak_blocks
from augury.types import EncoderInput
from scheduler_svc.core.chunking import min_budget
from scheduler_svc.core.request import Request
from scheduler_svc.core.room import fits
from tests.scheduler.harness import Harness, Shape, generation, lane_config, shapes, small_lane

FULL = KvGroup(block_size=4)
WINDOW = KvGroup(block_size=4, window=32)


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,), (FULL, WINDOW)])
@pytest.mark.parametrize("caching", [True, False])
def test_two_long_prompts_that_cannot_coexist_run_one_after_the_other(
    groups: tuple[KvGroup, ...], caching: bool
) -> None:
    needed = peak_blocks(groups, 120, 16)
    config = lane_config(groups=groups, num_blocks=1 + 2 * needed - 1, budget=16, prefix_caching=caching)
    lane = Harness(config)
    handles = [lane.submit(generation(range(n, n + 119), max_tokens=1)) for n in (0, 200)]
    running = set()
    while lane.scheduler.has_work:
        lane.iterate()
        running.add(tuple(r.handle for r in lane.scheduler.running.items))
    assert running == {(handles[0],), (), (handles[1],)}
    assert lane.scheduler.counters.num_preemptions == 0
    for handle in handles:
        lane.assert_told(handle)


def test_two_long_prompts_that_can_coexist_do() -> None:
    groups = (FULL, WINDOW)
    config = lane_config(groups=groups, num_blocks=1 + 2 * peak_blocks(groups, 120, 16) + 1, budget=16)
    lane = Harness(config)
    lane.submit(generation(range(119), max_tokens=9))
    lane.iterate()
    lane.submit(generation([1], max_tokens=1))
    late = lane.submit(generation(range(200, 319), max_tokens=1))
    while not any(r.handle == late for r in lane.scheduler.running.items):
        lane.iterate()
    assert len(lane.scheduler.running) == 2


@given(
    shapes=st.lists(shapes, min_size=1, max_size=3),
    lookahead=st.sampled_from([0, 2]),
    prompts=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 60)), min_size=2, max_size=5),
    caching=st.booleans(),
    spare=st.integers(0, 30),
    extra=st.integers(0, 12),
)
def test_prompts_alone_never_preempt_one_another(
    shapes: Sequence[Shape],
    lookahead: int,
    prompts: list[tuple[int, int]],
    caching: bool,
    spare: int,
    extra: int,
) -> None:
    """Whatever they share; only text that grows may ever need more room than there is."""
    roomy = small_lane(shapes=shapes, lookahead=lookahead, extra=extra, prefix_caching=caching)
    num_blocks = 1 + max(roomy.peak(length + 1) for _, length in prompts) + spare
    lane = Harness(
        small_lane(shapes=shapes, lookahead=lookahead, extra=extra, prefix_caching=caching, num_blocks=num_blocks)
    )
    for kind, length in prompts:
        lane.submit(generation(range(100 * kind, 100 * kind + length), max_tokens=1))
        lane.iterate()
    lane.run()
    assert lane.scheduler.counters.num_preemptions == 0
    for handle in lane.stories:
        lane.assert_told(handle)
    lane.assert_whole()


def test_a_shared_prefix_takes_its_room_once() -> None:
    lane = Harness(lane_config(groups=(FULL, WINDOW), num_blocks=105, budget=200))
    lane.submit(generation(range(160), max_tokens=30))
    lane.iterate()
    lane.iterate()
    for n in range(2):
        lane.submit(generation([*range(160), n], max_tokens=5))
    lane.iterate()
    assert len(lane.scheduler.running) == 3
    lane.run()
    assert lane.scheduler.counters.num_preemptions == 0


def test_a_lease_that_was_hit_less_than_hoped_is_given_back_before_it_runs() -> None:
    """The pool grants what it is asked for now; what the window needs later is the scheduler's to keep."""
    groups = (FULL, WINDOW)
    config = lane_config(groups=groups, num_blocks=75, budget=8)
    lane = Harness(config)
    first, second = (lane.submit(generation(prompt, max_tokens=1)) for prompt in (range(119), range(200, 300)))
    step = lane.begin()
    assert step is not None
    assert [new.handle for new in step.fresh] == [first]
    (doubtful,) = lane.scheduler.waiting.items
    assert (doubtful.handle, doubtful.doubtful, doubtful.tables) == (second, True, [])
    assert second in lane.kv.leases.tables
    lane.finish(step)
    asked = len(lane.proposals)
    lane.run()
    assert lane.scheduler.counters.num_preemptions == 0
    reserves = [r for proposal in lane.proposals[asked:] if proposal for r in proposal.reserves if r.lease == second]
    entries = [reserve for reserve in reserves if reserve.num_computed == 0]
    assert len(entries) == 1
    for handle in (first, second):
        lane.assert_told(handle)
    lane.assert_whole()


@pytest.mark.parametrize(("num_free", "num_running"), [(7, 2), (8, 3)])
def test_what_a_window_shares_is_claimed_anew_by_whoever_hit_it(num_free: int, num_running: int) -> None:
    """The second of two equal prompts hit eight blocks; once its window leaves them behind the first may keep them."""
    held, claimed, watermark = 9 + 1, 8 + 0, 2
    lane = Harness(lane_config(groups=(WINDOW,), num_blocks=1 + held + claimed + watermark + num_free))
    for _ in range(2):
        lane.submit(generation(range(33), max_tokens=20))
        lane.iterate()
        lane.iterate()
    lane.submit(generation(range(100, 131), max_tokens=20))
    lane.iterate()
    assert len(lane.scheduler.running) == num_running


def test_every_running_request_keeps_a_block_of_growth() -> None:
    lane = Harness(lane_config(num_blocks=1 + 10, prefix_caching=False))
    lane.submit(generation(range(7), max_tokens=9))
    lane.iterate()
    lane.submit(generation(range(29), max_tokens=2))
    lane.iterate()
    assert len(lane.scheduler.running) == 1
    smaller = Harness(lane_config(num_blocks=1 + 11, prefix_caching=False))
    smaller.submit(generation(range(7), max_tokens=9))
    smaller.iterate()
    smaller.submit(generation(range(29), max_tokens=2))
    smaller.iterate()
    assert len(smaller.scheduler.running) == 2


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW), (WINDOW,)])
def test_a_request_that_the_pool_can_never_hold_is_refused_with_the_numbers(groups: tuple[KvGroup, ...]) -> None:
    needed = peak_blocks(groups, 100 + 3, 8 + 3)
    wanted = generation(range(90), max_tokens=10)
    config = lane_config(groups=groups, num_blocks=1 + needed, budget=8, max_drafts=3)
    assert fits(config, Request(handle=1, generation=wanted, arrival=1))
    lane = Harness(lane_config(groups=groups, num_blocks=needed, budget=8, max_drafts=3))
    with pytest.raises(ContextLengthError, match=rf"90 .* 10 .* {needed} KV blocks of the {needed - 1} "):
        lane.submit(wanted)
    assert not lane.scheduler.has_work


@given(
    shapes=st.lists(shapes, min_size=1, max_size=3),
    lookahead=st.sampled_from([0, 1, 3]),
    max_drafts=st.integers(0, 3),
    extra=st.integers(0, 9),
    num_blocks=st.integers(20, 50),
)
def test_the_longest_request_of_any_groups_finishes_alone(
    shapes: Sequence[Shape], lookahead: int, max_drafts: int, extra: int, num_blocks: int
) -> None:
    config = small_lane(
        shapes=shapes, lookahead=lookahead, max_drafts=max_drafts, extra=extra, num_blocks=num_blocks, max_model_len=90
    )
    if config.max_len < 2:
        return
    lane = Harness(config)
    num_prompt = max(config.max_len - 3, 1)
    handle = lane.submit(generation(range(num_prompt), max_tokens=config.max_len - num_prompt))
    lane.run()
    lane.assert_told(handle)
    with pytest.raises(ContextLengthError):
        lane.submit(generation(range(num_prompt), max_tokens=config.max_len - num_prompt + 1))


def test_inputs_for_an_encoder_that_the_worker_lacks_are_refused() -> None:
    lane = Harness()
    wanted = replace(generation(range(9)), inputs=(EncoderInput(start=1, length=2, digest=b"d"),))
    with pytest.raises(InvalidRequestError) as refused:
        lane.submit(wanted)
    assert refused.value.param == "inputs"
    assert not lane.scheduler.has_work


def test_the_least_budget_suffices_for_any_groups() -> None:
    config = small_lane(shapes=[(3, 2, True), (4, None, False)], lookahead=3, max_drafts=2)
    assert config.max_batched_tokens == min_budget(3, 2)
    lane = Harness(config)
    handles = [lane.submit(generation(range(n, n + 20), max_tokens=6)) for n in range(3)]
    lane.run()
    for handle in handles:
        lane.assert_told(handle)
