"""The order of requests."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.policy import Policy, Queue, rank_of
from scheduler_svc.core.request import Request
from tests.scheduler.harness import generation

arrivals = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 50)), unique_by=lambda pair: pair[1])


def request(priority: int, arrival: int) -> Request:
    return Request(handle=arrival, generation=generation([1], priority=priority), arrival=arrival)


def queue(policy: Policy, pairs: list[tuple[int, int]]) -> Queue:
    made = Queue(rank_of(policy))
    for priority, arrival in pairs:
        made.add(request(priority, arrival))
    return made


@given(pairs=arrivals)
def test_fcfs_goes_by_arrival_alone(pairs: list[tuple[int, int]]) -> None:
    assert [r.arrival for r in queue(Policy.FCFS, pairs).items] == sorted(arrival for _, arrival in pairs)


@given(pairs=arrivals)
def test_priority_goes_by_priority_then_arrival(pairs: list[tuple[int, int]]) -> None:
    items = queue(Policy.PRIORITY, pairs).items
    assert [(r.generation.priority, r.arrival) for r in items] == sorted(pairs)


def test_a_removed_request_is_gone_and_its_equals_stay() -> None:
    made = queue(Policy.FCFS, [])
    twins = [request(0, 1), request(0, 1)]
    for twin in twins:
        made.add(twin)
    made.remove(twins[1])
    assert made.items == [twins[0]]
    assert len(made) == 1


def test_taking_all_leaves_an_empty_queue() -> None:
    made = queue(Policy.FCFS, [(0, 2), (0, 1)])
    assert [r.arrival for r in made.take_all()] == [1, 2]
    assert len(made) == 0
