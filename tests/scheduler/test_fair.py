"""Shares of clients: who is next in the queue, and what each was served."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.types import Row
from scheduler_svc.core.accounts import GENERATED_WEIGHT
from scheduler_svc.core.fair import MAX_STEPS, PRIORITY_STEP_TOKENS, FairQueue
from scheduler_svc.core.request import Request
from tests.scheduler.harness import Harness, generation, lane_config

A, B, C = (bytes([name]) * 16 for name in b"abc")
priorities = st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1)


def request(arrival: int, client: bytes | None = None, priority: int = 0, num_prompt: int = 1) -> Request:
    wanted = generation([1] * num_prompt, client=client, priority=priority)
    return Request(handle=arrival, generation=wanted, arrival=arrival)


def serve(queue: FairQueue) -> Request:
    """The first is admitted, its prompt computed, and it ends."""
    first = next(iter(queue))
    queue.remove(first)
    first.account.served += first.unpaid
    first.account.num_requests -= 1
    return first


def filled(*requests: Request) -> FairQueue:
    queue = FairQueue()
    for each in requests:
        queue.add(each)
    return queue


# --- the order ---


@given(
    coming=st.lists(st.tuples(st.sampled_from([A, B, C, None]), priorities, st.integers(1, 50)), max_size=12),
    served=st.lists(st.integers(0, 100), min_size=4, max_size=4),
)
def test_the_order_is_always_the_first_of_the_client_served_least(
    coming: list[tuple[bytes | None, int, int]], served: list[int]
) -> None:
    queue = filled(*(request(n, *each) for n, each in enumerate(coming)))
    waiting = queue.items
    accounts = dict.fromkeys(each.account for each in waiting)
    for account, tokens in zip(accounts, served, strict=False):
        account.served = tokens
    level = {account: account.served for account in accounts}
    left, expected = set(waiting), list[Request]()
    while left:
        firsts = [
            min((r for r in left if r.account is account), key=lambda r: (r.place, r.arrival), default=None)
            for account in accounts
        ]
        following = min((r for r in firsts if r), key=lambda r: (level[r.account], r.arrival))
        level[following.account] += following.unpaid
        left.remove(following)
        expected.append(following)
    assert queue.items == list(queue) == expected
    assert len(queue) == len(coming)


@given(more=st.lists(st.tuples(st.sampled_from([A, B, C]), priorities), max_size=8), charge=st.integers(0, 100))
def test_the_first_stays_first_until_it_leaves(more: list[tuple[bytes, int]], charge: int) -> None:
    queue = filled(request(0, A), request(1, B))
    first = next(iter(queue))
    first.account.served += charge
    for arrival, (client, priority) in enumerate(more, 2):
        queue.add(request(arrival, client, priority))
        assert next(iter(queue)) is queue.items[0] is first
    queue.remove(first)
    assert first not in queue.items
    assert len(queue) == len(queue.items) == 1 + len(more)


def test_one_that_comes_back_is_before_those_of_its_client_that_came_later() -> None:
    queue = filled(*(request(n, A) for n in range(4)))
    preempted = [next(iter(queue))]
    queue.remove(preempted[0])
    preempted[0].account.served += 10 * PRIORITY_STEP_TOKENS
    assert next(iter(queue)).arrival == 1
    queue.add(request(4, A))
    queue.add(preempted[0])
    assert [each.arrival for each in queue] == [0, 1, 2, 3, 4]


def test_priorities_do_not_take_from_other_clients() -> None:
    queue = filled(*(request(n, A, priority=-(2**31)) for n in range(6)), *(request(n, B, 9) for n in range(6, 12)))
    assert Counter(each.generation.client for each in list(queue)[:6]) == {A: 3, B: 3}


def test_taking_all_leaves_nothing_not_even_an_account() -> None:
    queue = filled(request(0, A), request(1, B), request(2, A))
    (before,) = (each.account for each in queue.take_all() if each.arrival == 1)
    assert (len(queue), queue.items, list(queue)) == (0, [], [])
    later = request(3, B)
    queue.add(later)
    assert later.account is not before


# --- bounds ---


@given(low=priorities, urgent=priorities, num_prompt=st.integers(200, 5000))
@settings(max_examples=30)
def test_no_priority_makes_a_request_wait_for_ever(low: int, urgent: int, num_prompt: int) -> None:
    victim = request(0, A, low)
    queue = filled(victim)
    served = 0
    for arrival in range(1, 2000):
        queue.add(request(arrival, A, urgent, num_prompt))
        if serve(queue) is victim:
            break
        served += num_prompt
    assert victim not in queue.items
    assert served <= 2 * MAX_STEPS * PRIORITY_STEP_TOKENS + num_prompt


@given(steps=st.integers(1, 2 * MAX_STEPS), above=st.booleans())
def test_a_step_of_priority_is_worth_so_many_served_tokens(steps: int, above: bool) -> None:
    early = request(0, A, priority=steps - MAX_STEPS)
    queue = filled(early)
    early.account.served += steps * PRIORITY_STEP_TOKENS + (1 if above else -1)
    urgent = request(1, A, priority=-MAX_STEPS)
    queue.add(urgent)
    assert next(iter(queue)) is (early if above else urgent)


def test_idling_earns_nothing() -> None:
    queue = filled(request(0, B), *(request(n, A) for n in range(1, 60)))
    while len(queue) > 30:
        serve(queue)
    for arrival in range(60, 80):
        queue.add(request(arrival, B))
    turns = [serve(queue).generation.client for _ in range(20)]
    assert turns.count(B) == 10


def test_one_that_comes_begins_at_the_least_account_of_those_that_wait() -> None:
    low, high, late = request(0, A), request(1, B), request(2, C)
    queue = filled(low, high)
    low.account.served, high.account.served = 30, 70
    queue.add(late)
    assert late.account.served == 30


def test_where_nobody_waits_one_that_comes_begins_where_the_last_is_who_did() -> None:
    running, late = request(0, A), request(1, B)
    queue = filled(running)
    queue.remove(running)
    running.account.served = 50
    queue.add(late)
    assert late.account.served == 50


def test_nobody_gets_rid_of_what_it_was_served_by_leaving_for_a_while() -> None:
    queue = filled(request(0, A, num_prompt=100), request(1, B, num_prompt=1))
    assert [serve(queue).arrival, serve(queue).arrival] == [0, 1]
    for arrival in range(2, 80):
        queue.add(request(arrival, B))
    queue.add(request(80, C))
    queue.add(request(81, A))
    assert [each.generation.client for each in queue].index(A) > 75


def test_an_account_is_dropped_once_the_level_has_reached_it() -> None:
    once = request(0, A)
    queue = filled(once, *(request(n, B) for n in range(1, 9)))
    while len(queue) > 2:
        serve(queue)
    queue.add(request(9, C))
    again = request(10, A)
    queue.add(again)
    assert again.account is not once.account
    assert again.account.served >= once.account.served


# --- on a lane ---

sizes = st.tuples(st.integers(1, 24), st.integers(1, 24))


def served_naively(lane: Harness, handles: list[int]) -> int:
    """Weighted tokens by the steps alone: each position of a prompt when it is first computed or hit, each one told."""
    seen: dict[int, set[int]] = {handle: set() for handle in handles}
    computed = dict.fromkeys(handles, 0)
    total = sum(GENERATED_WEIGHT * len(lane.stories[handle].tokens) for handle in handles)
    for step in lane.steps:
        for new in (each for each in step.fresh if each.handle in seen):
            computed[new.handle] = new.num_computed
            seen[new.handle].update(range(new.num_computed))
        for row in (each for each in step.rows if each.handle in seen):
            total += _newly_computed(lane, row, seen[row.handle], computed)
    return total


def _newly_computed(lane: Harness, row: Row, seen: set[int], computed: dict[int, int]) -> int:
    start = computed[row.handle]
    positions = set(range(start, min(start + row.num_new, len(lane.stories[row.handle].prompt)))) - seen
    seen.update(positions)
    computed[row.handle] += row.num_new
    return len(positions)


@given(
    wanted=st.lists(sizes, min_size=1, max_size=8),
    shared=st.integers(0, 12),
    num_blocks=st.sampled_from([17, 40]),
    cancelled=st.integers(0, 9),
)
@settings(max_examples=40)
def test_an_account_is_what_the_steps_say(
    wanted: list[tuple[int, int]], shared: int, num_blocks: int, cancelled: int
) -> None:
    lane = Harness(lane_config(budget=16, num_blocks=num_blocks, max_running=4))
    handles = [
        lane.submit(generation([*range(shared), *[n] * num_prompt], client=A, max_tokens=max_tokens))
        for n, (num_prompt, max_tokens) in enumerate(wanted)
    ]
    account = lane.scheduler.waiting.items[0].account
    for _ in range(cancelled):
        lane.iterate()
    lane.cancel(handles[-1])
    lane.run()
    assert account.served == served_naively(lane, handles)
    assert account.num_requests == 0


@given(sizes_a=sizes, sizes_b=sizes, caching=st.booleans())
@settings(max_examples=20)
def test_two_clients_with_endless_work_get_half_of_the_tokens_each(
    sizes_a: tuple[int, int], sizes_b: tuple[int, int], caching: bool
) -> None:
    config = lane_config(budget=16, num_blocks=25, max_running=3, prefix_caching=caching)
    lane, wanted = Harness(config), {A: sizes_a, B: sizes_b}
    num_pool = 24 * 4
    bound = 2 * max(24, GENERATED_WEIGHT * num_pool)
    for number in range(350):
        waiting = Counter(each.generation.client for each in lane.scheduler.waiting.items)
        for client, (num_prompt, max_tokens) in wanted.items():
            for copy in range(4 - waiting[client]):
                prompt = [number, copy, *[7] * num_prompt]
                lane.submit(generation(prompt, client=client, max_tokens=max_tokens))
        lane.iterate()
        a, b = (
            next(r.account.served for r in lane.scheduler.waiting.items if r.generation.client == client)
            for client in wanted
        )
        assert abs(a - b) <= bound
    assert a + b > 2 * bound, "it ran for too short a time to tell"


@pytest.mark.parametrize("max_running", [1, 3])
def test_a_flood_delays_another_clients_request_by_one_of_its_own_at_most(max_running: int) -> None:
    lane = Harness(lane_config(budget=16, max_running=max_running))
    flood = [lane.submit(generation([n] * 9, client=A, max_tokens=6)) for n in range(40)]
    for _ in range(20):
        lane.iterate()
    num_steps = len(lane.steps)
    single = lane.submit(generation([99] * 5, client=B))
    lane.run()
    later = [new.handle for step in lane.steps[num_steps:] for new in step.fresh]
    assert later.index(single) <= 1
    assert set(later[later.index(single) + 1 :]) <= set(flood)
    for handle in (*flood, single):
        lane.assert_told(handle)
