"""Leases taken over by a service that has never seen the pool: all of them or none."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from augury.errors import FencedError, InvalidRequestError
from augury.geometry import KvGroup
from augury.types import Holding, Reserve, Seal
from kvcache_svc.core.coordinator import Coordinator, open_pool
from kvcache_svc.core.inspection import Census
from tests.kvcache.prompts import granted, proposal, spec

KEYS = [bytes([n]) * 16 for n in range(9)]
GROUPS = (KvGroup(block_size=4), KvGroup(block_size=4, window=8))
SPEC = spec(*GROUPS, num_blocks=12)


def holding(lease: int, full: Sequence[int], window: Sequence[int], *sealed: tuple[int, int, bytes]) -> Holding:
    seals = tuple(Seal(lease=lease, group=group, index=index, key=key) for group, index, key in sealed)
    return Holding(lease=lease, blocks=(tuple(full), tuple(window)), seals=seals)


SHARING = (
    holding(1, [1, 2, 3], [0, 5, 6], (0, 0, KEYS[0]), (0, 1, KEYS[1]), (1, 1, KEYS[2])),
    holding(2, [1, 7], [8], (0, 0, KEYS[0])),
)


def test_leases_go_on_where_they_were() -> None:
    kv = Coordinator(SPEC, {KEYS[4]: 9}, SHARING)
    kv.check()
    assert kv.leases.tables == {1: [[1, 2, 3], [0, 5, 6]], 2: [[1, 7], [8]]}
    assert kv.pool.census() == Census(free=3, open=4, sealed=3, cached=1)
    grant = kv.step(
        proposal(
            1,
            [Reserve(lease=1, num_slots=14, num_ahead=4, num_computed=12)],
            seals=(Seal(lease=1, group=0, index=2, key=KEYS[5]),),
            releases=(2,),
        )
    )
    kv.check()
    assert [len(blocks) for blocks in granted(grant)[0].blocks] == [1, 1]
    assert kv.pool.find(KEYS[0]) == 1
    with pytest.raises(InvalidRequestError, match="not open"):
        kv.step(proposal(2, seals=(Seal(lease=1, group=0, index=0, key=KEYS[5]),)))


def test_what_a_lease_writes_is_not_what_the_block_held_before() -> None:
    """The worker's tag of a block outlives its eviction until the block's next writer is sent."""
    kv = Coordinator(SPEC, {KEYS[3]: 3, KEYS[0]: 9, KEYS[4]: 4, KEYS[5]: 12, KEYS[6]: 0}, SHARING)
    kv.check()
    assert [kv.pool.find(key) for key in KEYS[:7]] == [1, 2, 5, None, 4, None, None]


def test_a_duplicate_of_a_sealed_block_stays_out_of_the_index() -> None:
    kv = Coordinator(SPEC, {}, [*SHARING, holding(3, [9], [], (0, 0, KEYS[1]))])
    assert kv.pool.find(KEYS[1]) == 2
    kv.step(proposal(1, releases=(3,)))
    kv.check()
    assert kv.pool.census().cached == 0


def test_taking_over_is_told_to_the_registry() -> None:
    gained, lost = Coordinator(SPEC, {KEYS[4]: 9}, SHARING).pool.take_index_changes()
    assert (sorted(gained), lost) == ([(KEYS[0], 1), (KEYS[1], 2), (KEYS[2], 5)], [])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([holding(1, [3], []), holding(1, [4], [])], "held twice"),
        ([holding(1, [3], [4]), holding(2, [5, 4], [])], "block 4 has 2 writers"),
        ([holding(1, [3, 3], [])], "block 3 has 2 writers"),
        ([holding(1, [3], [3])], "block 3 has 2 writers"),
        ([holding(1, [12], [])], "the pool has not"),
        ([holding(1, [], [-1])], "the pool has not"),
        ([holding(1, [3, 0], [4])], "no window has passed"),
        ([holding(1, [3], [0, 4, 0, 5])], "no window has passed"),
        ([holding(1, [3], [0, 4], (1, 0, KEYS[0]))], "seals index 0"),
        ([holding(1, [3], [4], (0, 1, KEYS[0]))], "seals index 1"),
        ([holding(1, [3], [4], (0, -1, KEYS[0]))], "seals index -1"),
        ([holding(1, [3], [4], (2, 0, KEYS[0]))], "does not hold"),
        ([holding(1, [3], [4], (-1, 0, KEYS[0]))], "does not hold"),
        ([holding(1, [3], [4], (0, 0, KEYS[0]), (0, 0, KEYS[0]))], "twice"),
        ([holding(1, [3], [], (0, 0, KEYS[0])), holding(2, [3], [], (0, 0, KEYS[1]))], "two keys"),
        ([replace(holding(1, [3], []), blocks=((3,),))], "1 block tables"),
        ([replace(holding(1, [3], []), seals=(Seal(lease=2, index=0, key=KEYS[0]),))], "does not hold"),
    ],
)
def test_impossible_holdings_are_refused_whole(wrong: Sequence[Holding], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        Coordinator(SPEC, {}, [*wrong, holding(9, [10], [])])


def test_a_pool_that_is_known_at_this_epoch_takes_nothing_over() -> None:
    kv = Coordinator(SPEC)
    assert open_pool(kv, SPEC, {KEYS[0]: 1}, SHARING) is kv
    assert kv.leases.tables == {}


def test_leases_of_a_later_epoch_replace_what_is_known() -> None:
    """An earlier scheduler's message came first after the restart."""
    kv = Coordinator(SPEC, {KEYS[4]: 9})
    opened = open_pool(kv, replace(SPEC, epoch=2), {KEYS[5]: 9}, SHARING)
    assert sorted(opened.leases.tables) == [1, 2]
    assert [opened.pool.find(key) for key in KEYS[4:6]] == [None, 9]
    with pytest.raises(FencedError):
        opened.step(proposal(1))
