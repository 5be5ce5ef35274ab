"""A pool too small for all: who gives way, and that everybody gets through."""

from typing import Any

from hypothesis import given, reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from augury.types import EndReason
from scheduler_svc.core.lane import KeyLookahead, LaneConfig
from scheduler_svc.core.policy import Policy
from tests.scheduler.harness import Harness, generation, lane_config, shapes, small_lane


def times_admitted(lane: Harness) -> dict[int, int]:
    return {handle: sum(new.handle == handle for step in lane.steps for new in step.fresh) for handle in lane.stories}


@given(num_requests=st.integers(2, 8), caching=st.booleans(), lookahead=st.sampled_from([0, 1, 4]))
def test_everybody_finishes_and_the_oldest_is_never_preempted(num_requests: int, caching: bool, lookahead: int) -> None:
    config = lane_config(num_blocks=9, block_size=4, prefix_caching=caching, lookahead=lookahead, max_drafts=lookahead)
    lane = Harness(config)
    handles = [lane.submit(generation([n, n + 1, n + 2], max_tokens=20)) for n in range(num_requests)]
    lane.run()
    for handle in handles:
        lane.assert_told(handle)
        assert len(lane.stories[handle].tokens) == 20
    for proposal in filter(None, lane.proposals):
        assert not set(proposal.releases) & {reserve.lease for reserve in proposal.reserves}, "in and out at once"
    admitted = times_admitted(lane)
    assert admitted[handles[0]] == 1
    assert lane.scheduler.counters.num_preemptions == sum(admitted.values()) - num_requests > 0
    lane.assert_whole()


def test_the_last_in_policy_order_gives_way() -> None:
    lane = Harness(lane_config(num_blocks=7, block_size=4, policy=Policy.PRIORITY))
    unimportant = lane.submit(generation([1, 2, 3], max_tokens=16, priority=1))
    important = lane.submit(generation([4, 5, 6], max_tokens=16, priority=0))
    lane.run()
    admitted = times_admitted(lane)
    assert admitted[important] == 1
    assert admitted[unimportant] > 1


def test_a_preempted_request_hits_the_blocks_it_sealed() -> None:
    lane = Harness(lane_config(num_blocks=10, block_size=4))
    lane.submit(generation(range(8), max_tokens=16))
    victim = lane.submit(generation(range(50, 66), max_tokens=8))
    lane.run()
    fresh = [new for step in lane.steps for new in step.fresh if new.handle == victim]
    assert len(fresh) == 2
    assert fresh[1].num_computed > 0
    assert fresh[1].num_prompt == 16
    assert fresh[1].tokens[:16] == tuple(range(50, 66))
    lane.assert_told(victim)


def test_a_preempted_request_reports_the_hit_of_its_first_admission() -> None:
    lane = Harness(lane_config(num_blocks=10, block_size=4))
    lane.submit(generation(range(8), max_tokens=16))
    victim = lane.submit(generation(range(50, 66), max_tokens=8))
    lane.run()
    assert lane.scheduler.counters.num_preemptions == 1
    assert lane.stories[victim].num_cached == 0


def startable(**fields: Any) -> LaneConfig:
    """A lane with a pool that is small, but not too small for any hit by plain keys."""
    try:
        return small_lane(**fields)
    except ValueError:
        reject()


lanes = st.builds(
    startable,
    lookahead=st.sampled_from([0, 1, 3]),
    max_drafts=st.integers(0, 3),
    extra=st.integers(0, 20),
    shapes=st.lists(shapes, min_size=1, max_size=3),
    num_blocks=st.integers(24, 60),
    max_running=st.integers(1, 6),
    policy=st.sampled_from(Policy),
    prefix_caching=st.booleans(),
    key_lookahead=st.sampled_from(KeyLookahead),
)


class AnyOrder(RuleBasedStateMachine):
    """Clients, faults and iterations in any order; in the end everybody was told the oracle's text."""

    @initialize(config=lanes)
    def start(self, config: LaneConfig) -> None:
        self.lane = Harness(config)
        self.cancelled: set[int] = set()

    @rule(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12), data=st.data())
    def submit(self, prompt: list[int], data: st.DataObject) -> None:
        room = self.lane.config.max_len - len(prompt)
        if room >= 1:
            max_tokens = data.draw(st.integers(1, min(room, 12)))
            client = data.draw(st.sampled_from([None, b"a" * 16, b"b" * 16]))
            priority = data.draw(st.integers(0, 2))
            handle = self.lane.submit(generation(prompt, max_tokens=max_tokens, priority=priority, client=client))
            self.lane.worker.right[handle] = data.draw(st.lists(st.integers(0, 3), max_size=6))

    @precondition(lambda self: self.lane.stories)
    @rule(data=st.data(), moment=st.sampled_from(["idle", "proposed", "in flight"]))
    def cancel(self, data: st.DataObject, moment: str) -> None:
        handle = data.draw(st.sampled_from(sorted(self.lane.stories)))
        if self.lane.stories[handle].ended is None:
            self.cancelled.add(handle)
        if moment == "idle":
            self.lane.cancel(handle)
            return
        grant = self.lane.propose()
        if moment == "proposed":
            self.lane.cancel(handle)
        step = self.lane.scheduler.dispatch(grant)
        if moment == "in flight":
            self.lane.cancel(handle)
        if step:
            self.lane.finish(step)

    @rule(times=st.integers(1, 6))
    def iterate(self, times: int) -> None:
        for _ in range(times):
            self.lane.iterate()

    @rule(moment=st.sampled_from(["idle", "proposed", "in flight"]))
    def fence(self, moment: str) -> None:
        if moment != "idle":
            grant = self.lane.propose()
            if moment == "in flight":
                self.lane.scheduler.dispatch(grant)
        self.lane.fence()

    @rule(lost=st.sampled_from(["nothing", "proposal", "grant"]), cancelled=st.booleans(), data=st.data())
    def renew(self, lost: str, cancelled: bool, data: st.DataObject) -> None:
        if lost == "proposal":
            self.lane.scheduler.propose()
        if lost == "grant":
            self.lane.propose()
        if cancelled and self.lane.stories:
            handle = data.draw(st.sampled_from(sorted(self.lane.stories)))
            if self.lane.stories[handle].ended is None:
                self.cancelled.add(handle)
                self.lane.cancel(handle)
        self.lane.renew()

    @rule()
    def lose_tags(self) -> None:
        self.lane.worker.tags.clear()

    @invariant()
    def tokens_to_compute_are_counted(self) -> None:
        if hasattr(self, "lane"):
            lane = self.lane.scheduler
            requests = [*lane.waiting.items, *lane.running.items]
            assert lane.queue_tokens == sum(request.remaining for request in requests)
            assert lane.num_requests == len(requests)

    def teardown(self) -> None:
        if not hasattr(self, "lane"):
            return
        self.lane.run()
        self.lane.assert_whole()
        for handle in self.lane.stories:
            self.lane.assert_told(handle, EndReason.CANCELLED if handle in self.cancelled else EndReason.LENGTH)


TestAnyOrder = AnyOrder.TestCase
