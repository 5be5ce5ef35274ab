"""Proposals: order, idempotence, all or nothing, admission, fences."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from augury.errors import FencedError, InvalidRequestError
from augury.geometry import NULL_BLOCK, KvGroup
from augury.types import Granted, PoolSpec, Reserve, Seal
from kvcache_svc.core.coordinator import Coordinator, open_pool
from kvcache_svc.core.leases import Leases
from tests.kvcache.machine import KvMachine
from tests.kvcache.prompts import granted, proposal, spec

KEYS = [bytes([n]) * 16 for n in range(9)]

TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(max_examples=60, stateful_step_count=25)


def reserve(lease: int, num_slots: int, wanted: list[bytes] | None = None) -> Reserve:
    return Reserve(lease=lease, num_slots=num_slots, num_ahead=0, keys=(tuple(wanted),) if wanted else ())


def test_forget_seal_release_reserve_go_in_this_order() -> None:
    kv = Coordinator(spec(num_blocks=3))
    kv.step(proposal(1, [reserve(1, 8)]))
    kv.step(
        proposal(2, seals=(Seal(lease=1, index=0, key=KEYS[0]), Seal(lease=1, index=1, key=KEYS[1])), releases=(1,))
    )
    grant = kv.step(proposal(3, [reserve(2, 8, KEYS[:2])], forgotten=(KEYS[1],)))
    assert granted(grant)[0].num_computed == 4
    sealing = Seal(lease=2, index=1, key=KEYS[1])
    grant = kv.step(proposal(4, [reserve(3, 8, KEYS[:2])], forgotten=(KEYS[1],), seals=(sealing,), releases=(2,)))
    assert granted(grant)[0].num_computed == 8


def test_a_small_newcomer_does_not_overtake_a_denied_one_but_a_running_one_grows() -> None:
    kv = Coordinator(spec(num_blocks=5))
    kv.step(proposal(1, [reserve(1, 4)]))
    grant = kv.step(proposal(2, [reserve(2, 16), reserve(3, 4), reserve(1, 8)]))
    assert [part is not None for part in grant.reserves] == [False, False, True]
    assert sorted(kv.leases.tables) == [1]


def test_a_hit_on_idle_blocks_counts_against_what_is_available() -> None:
    kv = Coordinator(spec(num_blocks=4), {KEYS[0]: 1, KEYS[1]: 2})
    assert kv.step(proposal(1, [reserve(1, 16, KEYS[:2])])).reserves == (None,)
    assert granted(kv.step(proposal(2, [reserve(1, 12, KEYS[:2])])))[0].blocks == ((1, 2, 3),)
    counts = kv.inspect().lookups
    assert (counts.num_lookups, counts.query_tokens, counts.hit_tokens) == (1, 8, 8)


def test_one_groups_new_blocks_never_evict_another_groups_hit() -> None:
    """Two groups of one block each are cached and nothing is free: what group 0 still needs is not group 1's hit."""
    groups = (KvGroup(block_size=4), KvGroup(block_size=4))
    kv = Coordinator(spec(*groups, num_blocks=4), {KEYS[0]: 1, KEYS[1]: 2, KEYS[2]: 3})
    wanted = Reserve(lease=1, num_slots=8, num_ahead=8, keys=((KEYS[2],), (KEYS[0],)))
    assert kv.step(proposal(1, [wanted])).reserves == (None,)
    assert granted(kv.step(proposal(2, [replace(wanted, num_slots=4)])))[0].blocks == ((3,), (1,))
    assert kv.pool.find(KEYS[1]) == 2


def test_a_grant_is_of_all_groups_or_of_none() -> None:
    kv = Coordinator(spec(KvGroup(block_size=4), KvGroup(block_size=2), num_blocks=6))
    assert kv.step(proposal(1, [Reserve(lease=1, num_slots=8, num_ahead=8)])).reserves == (None,)
    assert kv.pool.num_available == 5
    assert granted(kv.step(proposal(2, [Reserve(lease=1, num_slots=4, num_ahead=4)])))[0].blocks == ((1,), (2, 3))
    assert kv.step(proposal(3, [Reserve(lease=1, num_slots=8, num_ahead=8)])).reserves == (None,)
    assert (kv.pool.num_available, kv.leases.tables) == (2, {1: [[1], [2, 3]]})


def test_a_repeated_proposal_takes_nothing_twice() -> None:
    kv = Coordinator(spec())
    wanted = proposal(1, [reserve(1, 8)])
    assert kv.step(wanted) is kv.step(wanted)
    assert kv.pool.num_available == 6


def test_a_refused_proposal_may_be_put_right_under_its_number() -> None:
    kv = Coordinator(spec())
    with pytest.raises(InvalidRequestError, match="lease 7"):
        kv.step(proposal(1, [reserve(1, 8)], releases=(7,)))
    assert granted(kv.step(proposal(1, [reserve(1, 8)]))) == [Granted(blocks=((1, 2),), num_sealed=(0,))]


def test_content_outlives_a_fence_and_leases_do_not() -> None:
    kv = Coordinator(spec())
    kv.step(proposal(1, [reserve(1, 8)]))
    kv.step(proposal(2, seals=(Seal(lease=1, index=0, key=KEYS[0]),)))
    kv.reopen(spec(epoch=2))
    assert (kv.pool.num_available, kv.pool.num_cached) == (8, 1)
    grant = kv.step(replace(proposal(1, [reserve(1, 8, KEYS[:1])]), epoch=2))
    assert granted(grant)[0].num_computed == 4


@pytest.mark.parametrize(
    "change",
    [{"incarnation": "j"}, {"fingerprint": "g"}, {"num_blocks": 8}, {"groups": (KvGroup(block_size=4, window=8),)}],
)
def test_another_memory_under_the_same_name_is_a_new_pool(change: dict[str, Any]) -> None:
    kv = Coordinator(spec(), {KEYS[0]: 1})
    other = replace(spec(epoch=2), **change)
    opened = open_pool(kv, other, {KEYS[1]: 2})
    assert opened.spec == other
    assert [opened.pool.find(key) for key in KEYS[:2]] == [None, 2]


def test_an_epoch_that_is_not_later_is_refused() -> None:
    with pytest.raises(FencedError):
        Leases(3).fence(3)
    with pytest.raises(FencedError):
        open_pool(Coordinator(spec(epoch=3)), replace(spec(epoch=3), incarnation="j"))


@pytest.mark.parametrize("wrong", [replace(spec(), groups=()), spec(num_blocks=1)])
def test_a_pool_without_blocks_or_groups_is_refused(wrong: PoolSpec) -> None:
    with pytest.raises(ValueError, match=r"at least one group|null block"):
        Coordinator(wrong)


def test_of_all_groups_together_the_left_end_of_a_prompt_is_evicted_last() -> None:
    groups = (KvGroup(block_size=4), KvGroup(block_size=2))
    kv = Coordinator(spec(*groups, num_blocks=7))
    kv.step(proposal(1, [Reserve(lease=1, num_slots=8, num_ahead=8)]))
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    seals = [Seal(lease=1, group=group, index=index, key=KEYS[n]) for n, (group, index) in enumerate(places)]
    kv.step(proposal(2, seals=tuple(seals), releases=(1,)))
    left = []
    for _ in range(6):
        kv.pool.allocate(1)
        left.append({n for n in range(6) if kv.pool.find(KEYS[n]) is not None})
    assert left == [{0, 1, 2, 3, 4}, {0, 1, 2, 3}, {0, 2, 3}, {0, 2}, {0}, set()]


@pytest.mark.parametrize("group", [KvGroup(block_size=4), KvGroup(block_size=4, window=4)])
def test_check_finds_a_lease_that_lacks_a_block_which_it_reads(group: KvGroup) -> None:
    kv = Coordinator(spec(group))
    kv.step(proposal(1, [Reserve(lease=1, num_slots=12, num_ahead=12)]))
    kv.check()
    table = kv.leases.tables[1][0]
    kv.pool.release(table[1:2])
    table[1] = NULL_BLOCK
    with pytest.raises(AssertionError, match="null block"):
        kv.check()
