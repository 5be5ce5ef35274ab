"""Requests and lanes: placement, parking, moving, bounds."""

import pytest

from augury.errors import ContextLengthError, DeadlineError, InvalidRequestError, OverloadedError
from augury.types import EndReason, Generation
from scheduler_svc.core.cluster import Cluster
from tests.scheduler.harness import Harness, Story, continuation, generation, lane_config


class House:
    """A cluster whose lanes run; ``stories`` are what the clients of all lanes saw."""

    def __init__(self, max_requests: int = 100) -> None:
        self.cluster = Cluster(max_requests)
        self.lanes: dict[str, Harness] = {}
        self.stories: dict[int, Story] = {}

    def join(self, pool: str, max_model_len: int = 4096) -> Harness:
        lane = Harness(lane_config(pool=pool, max_model_len=max_model_len))
        lane.stories = self.stories
        self.lanes[pool] = lane
        lane.record(self.cluster.join(lane.scheduler))
        return lane

    def leave(self, pool: str) -> None:
        self.lanes.pop(pool)
        self.record(pool)

    def record(self, pool: str) -> None:
        for delta in self.cluster.leave(pool):
            self.stories[delta.ticket].ended = delta.ended

    def submit(self, wanted: Generation) -> int:
        handle = self.cluster.submit(wanted)
        self.stories[handle] = Story(wanted.prompt, list(wanted.emitted))
        return handle

    def loads(self) -> dict[str, int]:
        return {pool: lane.scheduler.num_requests for pool, lane in self.lanes.items()}

    def run(self) -> None:
        for lane in self.lanes.values():
            lane.run()
            lane.assert_whole()

    def assert_told(self, handle: int) -> None:
        story = self.stories[handle]
        assert story.ended is not None
        assert story.ended.reason is EndReason.LENGTH
        assert tuple(story.tokens) == continuation(story.prompt, len(story.tokens))


def test_requests_spread_over_the_lanes_by_load() -> None:
    house = House()
    house.join("a"), house.join("b"), house.join("c")
    for n in range(7):
        house.submit(generation([n]))
    assert sorted(house.loads().values()) == [2, 2, 3]


def test_a_request_goes_where_it_fits_however_loaded() -> None:
    house = House()
    house.join("small", max_model_len=8), house.join("large", max_model_len=64)
    for n in range(4):
        house.submit(generation([n] * 20))
    assert house.loads() == {"small": 0, "large": 4}


def test_without_lanes_requests_are_parked_until_one_joins() -> None:
    house = House()
    handles = [house.submit(generation([n])) for n in range(3)]
    assert sorted(house.cluster.parked) == handles
    house.join("a")
    assert not house.cluster.parked
    house.run()
    for handle in handles:
        house.assert_told(handle)


def test_a_parked_request_that_fits_no_lane_ends_in_an_error_when_one_joins() -> None:
    house = House()
    long, short = house.submit(generation(range(20))), house.submit(generation([1]))
    house.join("a", max_model_len=8)
    ended = house.stories[long].ended
    assert ended is not None
    assert (ended.reason, ended.error_code) == (EndReason.FAILED, "context_length_exceeded")
    house.run()
    house.assert_told(short)
    assert house.cluster.num_requests == 0


@pytest.mark.parametrize("in_flight", [False, True])
def test_requests_of_a_lane_that_leaves_go_on_elsewhere_with_their_tokens(in_flight: bool) -> None:
    house = House()
    first = house.join("a")
    handles = [house.submit(generation([n, n], max_tokens=9)) for n in range(4)]
    for _ in range(3):
        first.iterate()
    if in_flight:
        first.begin()
    second = house.join("b")
    house.leave("a")
    assert house.loads() == {"b": 4}
    assert [len(house.stories[handle].tokens) for handle in handles] == [3] * 4
    house.run()
    assert [len(new.tokens) for step in second.steps for new in step.fresh] == [5] * 4
    for handle in handles:
        house.assert_told(handle)
        assert len(house.stories[handle].tokens) == 9


def test_requests_of_the_last_lane_are_parked_and_go_on_in_the_next() -> None:
    house = House()
    house.join("a").iterate()
    handle = house.submit(generation([1, 2], max_tokens=5))
    house.lanes["a"].iterate()
    house.leave("a")
    assert list(house.cluster.parked) == [handle]
    house.join("a")
    house.run()
    house.assert_told(handle)


def test_requests_of_a_lane_whose_name_joins_again_go_on_with_their_tokens() -> None:
    house = House()
    house.join("a")
    handles = [house.submit(generation([n, n], max_tokens=9)) for n in range(3)]
    for _ in range(3):
        house.lanes["a"].iterate()
    house.join("a")
    assert house.loads() == {"a": 3}
    house.run()
    for handle in handles:
        house.assert_told(handle)
        assert len(house.stories[handle].tokens) == 9


def test_a_lane_that_joins_twice_keeps_its_requests() -> None:
    house = House()
    lane = house.join("a")
    handle = house.submit(generation([1, 2], max_tokens=9))
    lane.iterate()
    assert house.cluster.join(lane.scheduler) == []
    house.run()
    house.assert_told(handle)
    assert sum(len(step.fresh) for step in lane.steps) == 1


def test_a_lane_that_never_joined_may_leave() -> None:
    house = House()
    handle = house.submit(generation([1]))
    assert house.cluster.leave("a") == []
    assert list(house.cluster.parked) == [handle]


def test_cancel_finds_a_request_wherever_it_is() -> None:
    house = House()
    parked = house.submit(generation([1]))
    moved = house.submit(generation([2]))
    delta = house.cluster.cancel(parked)
    assert delta is not None
    assert delta.ended is not None
    assert delta.ended.reason is EndReason.CANCELLED
    house.join("a")
    house.join("b")
    house.leave("a")
    delta = house.cluster.cancel(moved)
    assert delta is not None
    assert (delta.ticket, house.cluster.num_requests) == (moved, 0)
    assert house.cluster.cancel(moved) is None
    house.cluster.forget(moved)
    assert house.cluster.cancel(moved) is None


def test_beyond_the_bound_requests_are_refused_until_one_ends() -> None:
    house = House(max_requests=3)
    house.submit(generation([1]))
    house.join("a")
    handles = [house.submit(generation([n])) for n in (2, 3)]
    with pytest.raises(OverloadedError):
        house.submit(generation([4]))
    assert house.cluster.num_requests == 3
    house.cluster.cancel(handles[0])
    house.submit(generation([4]))


def test_an_empty_prompt_and_no_tokens_wanted_are_refused() -> None:
    house = House()
    with pytest.raises(InvalidRequestError) as empty:
        house.submit(generation([]))
    assert empty.value.param == "prompt"
    with pytest.raises(InvalidRequestError) as nothing:
        house.submit(generation([1], max_tokens=0))
    assert nothing.value.param == "max_tokens"
    with pytest.raises(InvalidRequestError):
        house.submit(generation([1], max_tokens=2, emitted=[5, 6]))
    assert house.cluster.num_requests == 0


def test_a_request_that_fits_no_lane_is_refused_and_leaves_nothing_behind() -> None:
    house = House()
    house.join("a", max_model_len=8)
    with pytest.raises(ContextLengthError):
        house.submit(generation(range(20)))
    assert house.cluster.num_requests == 0


def test_a_lane_that_drains_gets_no_requests_and_may_leave_once_another_can_go_on_with_those_it_has() -> None:
    house = House()
    first = house.join("a")
    handles = [house.submit(generation([n, n], max_tokens=9)) for n in range(2)]
    first.iterate()
    house.cluster.drain("a")
    assert not house.cluster.may_leave("a")
    handles.append(house.submit(generation([7], max_tokens=9)))
    assert list(house.cluster.parked) == handles[2:]
    house.join("b")
    assert house.cluster.may_leave("a") and not house.cluster.may_leave("b")
    assert house.loads() == {"a": 2, "b": 1}
    house.leave("a")
    assert house.loads() == {"b": 3}
    house.run()
    for handle in handles:
        house.assert_told(handle)


def test_the_last_lane_that_drains_may_leave_once_its_requests_have_ended() -> None:
    house = House()
    house.join("a")
    handle = house.submit(generation([1, 2], max_tokens=3))
    house.cluster.drain("a")
    assert not house.cluster.may_leave("a")
    house.run()
    house.assert_told(handle)
    assert house.cluster.may_leave("a")


def test_a_lane_that_drained_and_joins_again_gets_requests() -> None:
    house = House()
    house.join("a")
    house.cluster.drain("a")
    house.leave("a")
    house.join("a")
    house.submit(generation([1]))
    assert house.loads() == {"a": 1}


@pytest.mark.parametrize("parked", [False, True])
def test_a_request_can_be_failed_wherever_it_is_and_only_once(parked: bool) -> None:
    house = House()
    if not parked:
        house.join("a")
    handle = house.submit(generation([1]))
    (delta,) = house.cluster.fail(handle, DeadlineError("too late"))
    assert delta.ended is not None
    assert (delta.ticket, delta.ended.error_code) == (handle, "deadline_exceeded")
    assert house.cluster.fail(handle, DeadlineError("too late")) == []
    assert house.cluster.num_requests == 0
