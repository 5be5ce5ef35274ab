"""Which lane a request goes to, and what a lane remembers of its worker's blocks."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import RateLimitError
from augury.geometry import KvGroup
from augury.types import EndReason
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.memory import Memory
from scheduler_svc.core.placement import DECODE_TOKENS, Placement, cost
from scheduler_svc.core.request import Request
from tests.scheduler.harness import Harness, continuation, generation, lane_config, shapes, small_lane

A, B = b"a" * 16, b"b" * 16


def lane(pool: str, **fields: Any) -> Harness:
    return Harness(lane_config(pool=pool, num_blocks=257, max_running=4, **fields))


def request(prompt: range | list[int], handle: int = 1000) -> Request:
    return Request(handle=handle, generation=generation(prompt), arrival=handle)


def chosen(lanes: list[Harness], prompt: range | list[int]) -> str:
    return Placement().choose([each.scheduler for each in lanes], request(prompt)).config.pool


def warmed(pool: str, prompt: range) -> Harness:
    made = lane(pool)
    made.submit(generation(prompt))
    made.run()
    return made


# --- cost ---


def test_a_prompt_goes_where_its_beginning_is_cached() -> None:
    lanes = [lane("a"), warmed("b", range(100)), lane("c")]
    assert chosen(lanes, [*range(90), 7, 7, 7]) == "b"


def test_what_is_queued_counts_against_what_is_cached() -> None:
    lanes = [lane("a"), warmed("b", range(100))]
    lanes[1].submit(generation([3] * (90 - DECODE_TOKENS)))
    assert chosen(lanes, range(100)) == "b"
    lanes[1].submit(generation([4] * 40))
    assert chosen(lanes, range(100)) == "a"


def test_queued_tokens_count_and_not_only_requests() -> None:
    lanes = [lane("a"), lane("b")]
    lanes[0].submit(generation([1] * 200))
    for n in range(2):
        lanes[1].submit(generation([n]))
    assert chosen(lanes, range(20)) == "b"


def test_a_full_pool_is_avoided() -> None:
    lanes = [lane("a"), lane("b")]
    for each, num_prompt in zip(lanes, (600, 20), strict=True):
        each.submit(generation([1] * num_prompt, max_tokens=200))
        while each.scheduler.queue_tokens > 1:
            each.iterate()
    assert chosen(lanes, [2] * 600) == "b"
    missing = cost(lanes[0].scheduler, request([2] * 600), 0) - cost(lanes[1].scheduler, request([2] * 600), 0)
    assert missing == pytest.approx(600 + 600 - 4 * 256, abs=8)


@given(num_known=st.integers(1, 300), num_cached=st.integers(0, 200), waiting=st.lists(st.integers(1, 60), max_size=5))
def test_the_cost_of_a_lane_with_room_is_the_sum_of_its_terms(
    num_known: int, num_cached: int, waiting: list[int]
) -> None:
    made = lane("a")
    for n, num_prompt in enumerate(waiting):
        made.submit(generation([n] * num_prompt))
    expected = num_known - num_cached + sum(waiting) + DECODE_TOKENS * len(waiting)
    assert cost(made.scheduler, request([1] * num_known), num_cached) == expected


def test_one_system_prompt_does_not_herd_all_requests_to_one_lane() -> None:
    """The lane that has it gets no more ahead of the others than it costs them to compute it once."""
    cluster, lanes, system = Cluster(1000), [warmed("a", range(200)), lane("b"), lane("c"), lane("d")], range(200)
    for each in lanes:
        cluster.join(each.scheduler)
    for n in range(60):
        cluster.submit(generation([*system, n, n, n]))
    loads = [each.scheduler.num_requests for each in lanes]
    assert sum(loads) == 60
    assert min(loads) > 0 and loads[0] == max(loads)
    assert max(loads) - min(loads) <= 4


def test_equal_lanes_share_evenly() -> None:
    cluster, lanes = Cluster(1000), [lane(name) for name in "abcd"]
    for each in lanes:
        cluster.join(each.scheduler)
    firsts = Counter[int]()
    for n in range(40):
        handle = cluster.submit(generation([n]))
        firsts[next(i for i, each in enumerate(lanes) if each.scheduler.num_requests)] += 1
        cluster.cancel(handle)
    assert set(firsts.values()) == {10}


# --- memory ---


def test_after_a_restart_of_the_scheduler_the_tags_of_the_worker_place_as_before() -> None:
    old = warmed("b", range(100))
    fresh = Harness(old.config)
    assert chosen([fresh, lane("a")], range(100)) == "a"
    fresh.scheduler.memory.learn(old.worker.tags.items())
    for _ in range(3):
        assert chosen([lane("a"), fresh, lane("c")], range(100)) == "b"


def test_a_refused_hit_is_forgotten() -> None:
    made = warmed("a", range(40))
    block_size, keys = made.scheduler.names.prefix(request(range(40)))
    assert made.scheduler.memory.num_known(keys) * block_size >= 36
    made.worker.tags.clear()
    made.submit(generation(range(30)))
    made.begin()
    made.worker.tags.clear()
    made.finish(made.steps[-1])
    assert made.scheduler.counters.num_refused == 1
    assert made.scheduler.memory.num_known(keys) == 0


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), max_size=8),
    shapes=st.lists(shapes, min_size=1, max_size=3),
    num_blocks=st.integers(100, 140),
)
@settings(max_examples=30)
def test_a_lane_remembers_what_its_worker_holds_and_nothing_else(
    prompts: list[list[int]], shapes: list[tuple[int, int | None, bool]], num_blocks: int
) -> None:
    made = Harness(small_lane(shapes=shapes, lookahead=0, extra=20, num_blocks=num_blocks))
    for prompt in prompts:
        made.submit(generation(prompt, max_tokens=6))
        made.iterate()
    made.run()
    memory, held = made.scheduler.memory, set(made.worker.tags.values())
    assert sum(memory.num_known([key]) for key in held) == len(memory) == len(held)


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(56, 2), (2, 56)])
def test_what_new_writers_took_the_blocks_of_is_remembered_no_more(num_prompt: int, max_tokens: int) -> None:
    made = Harness(lane_config(num_blocks=17))
    made.submit(generation(range(60)))
    made.run()
    block_size, keys = made.scheduler.names.prefix(request(range(61)))
    assert made.scheduler.memory.num_known(keys) * block_size == 60
    made.submit(generation([500] * num_prompt, max_tokens=max_tokens))
    while made.scheduler.has_work:
        made.iterate()
        left = [key for key in keys if made.scheduler.memory.num_known([key])]
        assert left == [key for key in keys if key in made.worker.tags.values()]
    assert len(left) < 4


@given(
    known=st.integers(0, 40),
    length=st.integers(0, 40),
    overwritten=st.sets(st.integers(0, 39)),
    forgotten=st.sets(st.integers(0, 39)),
)
def test_the_known_beginning_of_a_chain_is_found(
    known: int, length: int, overwritten: set[int], forgotten: set[int]
) -> None:
    keys, memory = [bytes([n]) * 16 for n in range(40)], Memory()
    memory.learn((100 + n, keys[n]) for n in range(known))
    assert memory.num_known(keys[:length]) == min(known, length)
    memory.overwrite(100 + n for n in overwritten)
    memory.forget(keys[n] for n in forgotten)
    assert [n for n in range(40) if memory.num_known([keys[n]])] == sorted({*range(known)} - overwritten - forgotten)


@given(seed=st.integers(0, 10**6))
def test_a_key_is_known_as_long_as_some_block_has_it(seed: int) -> None:
    rng, memory, latest = Random(seed), Memory(), dict[int, bytes]()
    for _ in range(60):
        block, key = rng.randrange(6), bytes([rng.randrange(9)]) * 16
        memory.learn([(block, key)])
        latest[block] = key
        known = {key for key in (bytes([n]) * 16 for n in range(9)) if memory.num_known([key])}
        assert known == set(latest.values())
        assert len(memory) == len(known)


# --- keys ---


def test_keys_are_made_once_for_lanes_that_name_alike_and_anew_for_others() -> None:
    alike, other = [lane("a"), lane("b")], lane("c", groups=[KvGroup(block_size=2)])
    moved = request(range(50), handle=1)
    Placement().choose([each.scheduler for each in alike], moved).submit(moved)
    keys = moved.keys
    for each in alike:
        each.scheduler.evacuate()
    alike[1].scheduler.submit(moved)
    alike[1].propose()
    assert moved.keys is keys and len(keys[0]) == 12
    Placement().choose([other.scheduler], moved)
    assert moved.keys is not keys and len(moved.keys[0]) == 25


# --- shares ---


def test_one_client_cannot_fill_the_queue_for_all() -> None:
    cluster = Cluster(90)
    handles = [cluster.submit(generation([1], client=A)) for _ in range(80)]
    with pytest.raises(RateLimitError):
        cluster.submit(generation([1], client=A))
    cluster.submit(generation([1], client=B))
    cluster.cancel(handles[0])
    cluster.forget(handles[0])
    cluster.submit(generation([1], client=A))


def test_accepted_tokens_behind_a_stop_are_not_counted_as_computed() -> None:
    made = Harness(lane_config(lookahead=1, max_drafts=3))
    text = continuation(range(6), 8)
    handle = made.submit(generation(range(6), max_tokens=8, stop_token_ids=frozenset(text[2:3])))
    made.worker.right[handle] = [3]
    made.run()
    made.assert_told(handle, EndReason.STOP)
    assert made.scheduler.queue_tokens == 0
