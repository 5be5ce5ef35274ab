"""Why a hit is no longer, and what the pool remembers of its content."""

import pytest

from augury.geometry import KvGroup
from augury.types import Miss, Reserve, Seal
from kvcache_svc.core import history
from kvcache_svc.core.coordinator import Coordinator
from kvcache_svc.core.history import BOUNDS_S
from kvcache_svc.core.hits import Prefixes
from kvcache_svc.core.inspection import GroupUsage, HotPrefix
from tests.kvcache.prompts import Prompter, proposal, spec

FULL = KvGroup(block_size=4)
WINDOW = KvGroup(block_size=4, window=8)


def miss(kv: Prompter, num_tokens: int) -> tuple[int, Miss | None]:
    hit = kv.probe(range(num_tokens))
    return hit.num_computed, hit.miss


def computed(*groups: KvGroup, num_tokens: int = 16, num_blocks: int = 200) -> Prompter:
    kv = Prompter(*groups, num_blocks=num_blocks)
    kv.admit(1, range(num_tokens))
    kv.seal(1, range(num_tokens), num_tokens)
    kv.release(1)
    return kv


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,), (FULL, WINDOW), (FULL, KvGroup(block_size=8))])
def test_a_prompt_longer_than_any_before_is_cold_from_there(groups: tuple[KvGroup, ...]) -> None:
    kv = computed(*groups)
    assert miss(kv, 17) == (16, None)
    assert miss(kv, 40) == (16, Miss.COLD)


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,)])
def test_keys_that_made_room_are_told_from_those_never_seen(groups: tuple[KvGroup, ...]) -> None:
    kv = computed(*groups, num_blocks=6)
    kv.step([Reserve(lease=2, num_slots=8, num_ahead=8)])
    kv.release(2)
    assert miss(kv, 17) == (12, Miss.EVICTED)
    assert miss(kv, 16) == (12, None)


def test_a_window_that_lacks_a_block_is_why_the_full_group_is_cut() -> None:
    kv = computed(FULL, WINDOW)
    kv.step(forgotten=(kv.names(range(16))[1][2],))
    assert miss(kv, 17) == (8, Miss.WINDOW)


def test_where_the_full_group_ends_the_hit_the_reason_is_its_own() -> None:
    keys = (tuple(bytes([n]) for n in range(4)), tuple(bytes([9, n]) for n in range(4)))
    index = {key: n for n, key in enumerate([*keys[0][:3], *keys[1][:3]], 1)}
    for evicted, reason in ((keys[0][3], Miss.COLD), (keys[1][3], Miss.EVICTED)):
        hit = Prefixes((WINDOW, FULL), index.get, {evicted}.__contains__).hit(keys)
        assert (hit.num_tokens, hit.miss) == (12, reason)


def test_a_group_of_larger_blocks_cuts_a_hit() -> None:
    kv = computed(FULL, KvGroup(block_size=8), num_tokens=24)
    assert miss(kv, 24) == (16, Miss.ALIGNMENT)
    assert miss(kv, 17) == (16, None)


def test_a_prompt_too_short_for_a_block_misses_nothing() -> None:
    kv = computed(FULL)
    before = kv.kv.inspect().lookups
    assert miss(kv, 4) == (0, None)
    assert kv.kv.inspect().lookups == before


def test_lookups_are_counted_where_they_are_granted() -> None:
    kv = computed(FULL, num_blocks=9)
    miss(kv, 17)
    miss(kv, 24)
    kv.step([Reserve(lease=3, num_slots=99, num_ahead=99, keys=kv.names(range(96)))])
    counts = kv.kv.inspect().lookups
    assert (counts.num_lookups, counts.query_tokens, counts.hit_tokens) == (3, 12 + 16 + 20, 16 + 16)
    assert counts.misses == {Miss.COLD: 2}


def test_the_hottest_prefixes_are_those_where_most_lookups_ended() -> None:
    kv = computed(FULL, num_blocks=6)
    for num_tokens in (9, 13, 13, 17):
        miss(kv, num_tokens)
    (named,) = kv.names(range(16))
    hottest = [HotPrefix(key=named[n - 1], num_tokens=4 * n, num_hits=hits) for n, hits in ((3, 2), (4, 1), (2, 1))]
    assert kv.kv.inspect().hottest == tuple(hottest)
    assert kv.kv.inspect(num_hottest=1).hottest == tuple(hottest[:1])
    kv.step([Reserve(lease=3, num_slots=8, num_ahead=8)])
    kv.step(forgotten=(named[2],))
    assert kv.kv.inspect().hottest == tuple(hottest[2:])


def test_how_long_content_lived_and_lay_idle_before_it_made_room() -> None:
    kv = Coordinator(spec(num_blocks=3), now=100.0)
    fill = Reserve(lease=1, num_slots=8, num_ahead=8)
    kv.step(proposal(1, [fill]), 100.0)
    kv.step(proposal(2, seals=tuple(Seal(lease=1, index=n, key=bytes([n])) for n in range(2))), 110.0)
    kv.step(proposal(3, releases=(1,)), 130.0)
    kv.step(proposal(4, [Reserve(lease=2, num_slots=4, num_ahead=4, keys=((bytes([0]),),))]), 150.0)
    kv.step(proposal(5, releases=(2,)), 190.0)
    assert sum(kv.inspect().idle.counts) == 0
    kv.step(proposal(6, [fill]), 200.0)
    seen = kv.inspect()
    assert (seen.lifetime.total, seen.idle.total) == (2 * 90.0, 70.0 + 10.0)
    assert seen.lifetime.bounds == seen.idle.bounds == BOUNDS_S
    at = {bound: count for bound, count in zip(BOUNDS_S, seen.idle.counts, strict=False) if count}
    assert at == {300.0: 1, 15.0: 1}
    assert len(seen.idle.counts) == len(BOUNDS_S) + 1


def test_older_content_than_the_last_bound_is_counted_too() -> None:
    ages = history.Ages()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[-1], 2 * BOUNDS_S[-1]):
        ages.add(seconds)
    counts = ages.histogram().counts
    assert (counts[0], counts[-2], counts[-1], sum(counts)) == (2, 1, 1, 4)


def test_only_so_many_evicted_keys_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_GHOSTS", 2)
    past = history.History()
    for key in (b"a", b"b", b"a", b"c"):
        past.evicted(key, lifetime=1.0, idle=1.0)
    assert [past.was_evicted(key) for key in (b"a", b"b", b"c")] == [True, False, True]


def test_blocks_are_counted_by_group_and_state_and_shared_ones_once() -> None:
    kv = Prompter(FULL, WINDOW)
    kv.admit(1, range(17))
    kv.seal(1, range(17), 16)
    kv.admit(2, range(17))
    usage = kv.kv.inspect().groups
    assert usage == (GroupUsage(open=2, sealed=4, held=10), GroupUsage(open=2, sealed=4, held=5 + 3))
    kv.step([Reserve(lease=1, num_slots=18, num_ahead=1, num_computed=17)])
    assert kv.kv.inspect().groups[1] == GroupUsage(open=2, sealed=2, held=3 + 3)
