"""The block pool against its naive twin, and by example."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from augury.geometry import NULL_BLOCK
from kvcache_svc.core.inspection import Census
from kvcache_svc.core.pool import BlockPool
from tests.kvcache.naive import NaivePool

KEYS = [bytes([n]) * 16 for n in range(9)]
keys = st.sampled_from(KEYS)


class PoolMachine(RuleBasedStateMachine):
    """Every public method, in any order that its callers may use. ``registry`` replays the index changes."""

    @initialize(num_blocks=st.integers(2, 12), restored=st.dictionaries(keys, st.integers(-1, 13), max_size=6))
    def make(self, num_blocks: int, restored: dict[bytes, int]) -> None:
        self.pool = BlockPool(num_blocks)
        self.naive = NaivePool(num_blocks)
        self.num_leases = 0
        survivors = {block: key for key, block in restored.items() if 0 < block < num_blocks}
        self.registry = {key: block for block, key in survivors.items()}
        self.pool.restore(restored)
        self.naive.restore(restored)

    @rule(wanted=st.lists(keys, max_size=4), data=st.data())
    def lease(self, wanted: list[bytes], data: st.DataObject) -> None:
        hit = self.naive.run(wanted)
        assert [self.pool.find(key) for key in wanted[: len(hit)]] == hit
        assert self.pool.num_idle(hit) == sum(block in self.naive.cached for block in hit)
        self.pool.touch(hit)
        room = self.naive.num_available - len(set(hit) & set(self.naive.cached))
        new = self.pool.allocate(data.draw(st.integers(0, room)))
        self.num_leases += 1
        self.naive.hold(self.num_leases, [hit], [new])

    @precondition(lambda self: self.naive.tables)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        new = self.pool.allocate(data.draw(st.integers(0, self.naive.num_available)))
        self.naive.hold(data.draw(st.sampled_from(sorted(self.naive.tables))), [[]], [new])

    @precondition(lambda self: self.naive.open)
    @rule(key=keys, data=st.data())
    def seal(self, key: bytes, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.naive.open)))
        self.pool.seal(block, key)
        self.naive.seal(block, key)

    @precondition(lambda self: self.naive.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.naive.tables)))
        self.pool.release(self.naive.tables[lease][0])
        self.naive.release(lease)

    @rule(key=keys)
    def forget(self, key: bytes) -> None:
        self.pool.forget(key)
        self.naive.forget(key)

    @rule()
    def tell_registry(self) -> None:
        gained, lost = self.pool.take_index_changes()
        assert not dict(gained).keys() & set(lost)
        for key in lost:
            self.registry.pop(key, None)
        self.registry.update(gained)
        assert self.registry == self.naive.index
        assert self.pool.take_index_changes() == ([], [])

    @invariant()
    def equals_its_twin(self) -> None:
        self.pool.check([table for tables in self.naive.tables.values() for table in tables])
        assert self.pool.census() == self.naive.census()
        assert self.pool.num_available == self.naive.num_available
        assert self.pool.num_cached == len(self.naive.cached)
        assert {key: self.pool.find(key) for key in KEYS if self.pool.find(key)} == self.naive.index
        assert {b for b in range(1, self.naive.num_blocks) if self.pool.is_open(b)} == self.naive.open


TestPoolMachine = PoolMachine.TestCase


def sealed_table(pool: BlockPool, names: list[bytes]) -> list[int]:
    table = pool.allocate(len(names))
    for block, key in zip(table, names, strict=True):
        pool.seal(block, key)
    return table


@pytest.mark.parametrize("num_blocks", [-1, 0, 1])
def test_a_pool_without_a_usable_block_is_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="null block"):
        BlockPool(num_blocks)


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(6)
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    assert pool.num_available == 0
    assert NULL_BLOCK == 0


def test_a_continuation_is_evicted_before_its_prefix() -> None:
    pool = BlockPool(4)
    pool.release(sealed_table(pool, KEYS[:3]))
    for left in (2, 1, 0):
        pool.allocate(1)
        assert [pool.find(key) is not None for key in KEYS[:3]] == [True] * left + [False] * (3 - left)


def test_a_key_is_found_until_its_block_is_taken_and_free_blocks_go_first() -> None:
    pool = BlockPool(4)
    pool.release(sealed_table(pool, KEYS[:1]))
    pool.allocate(2)
    assert pool.find(KEYS[0]) is not None
    pool.allocate(1)
    assert pool.find(KEYS[0]) is None


def test_a_hit_block_becomes_the_last_to_be_evicted() -> None:
    pool = BlockPool(3)
    first, second = sealed_table(pool, KEYS[:1]), sealed_table(pool, KEYS[1:2])
    pool.release(first)
    pool.release(second)
    pool.touch(first)
    pool.release(first)
    assert pool.allocate(1) == second


def test_a_duplicate_is_free_once_released_and_the_found_block_stays() -> None:
    pool = BlockPool(5)
    found, duplicate = sealed_table(pool, KEYS[:1]), sealed_table(pool, KEYS[:1])
    assert pool.census() == Census(free=2, open=0, sealed=2, cached=0)
    pool.release(duplicate)
    pool.release(found)
    assert pool.census() == Census(free=3, open=0, sealed=0, cached=1)
    assert pool.find(KEYS[0]) == found[0]


def test_a_forgotten_block_in_use_is_free_once_released() -> None:
    pool = BlockPool(3)
    table = sealed_table(pool, KEYS[:1])
    pool.forget(KEYS[0])
    assert pool.find(KEYS[0]) is None
    pool.release(table)
    assert pool.census() == Census(free=2, open=0, sealed=0, cached=0)


def test_the_null_block_in_a_table_is_neither_held_nor_given_back() -> None:
    pool = BlockPool(4)
    table = [NULL_BLOCK, NULL_BLOCK, *sealed_table(pool, KEYS[:1])]
    pool.check([table])
    pool.release(table)
    assert pool.num_idle(table) == 1
    pool.touch(table)
    pool.check([table])
    assert pool.census() == Census(free=2, open=0, sealed=1, cached=0)


def test_sealing_a_shared_or_sealed_block_is_a_programming_error() -> None:
    pool = BlockPool(3)
    table = sealed_table(pool, KEYS[:1])
    with pytest.raises(AssertionError):
        pool.seal(table[0], KEYS[1])
    with pytest.raises(AssertionError):
        pool.allocate(2)


def test_check_finds_a_leaked_and_a_doubly_held_block() -> None:
    pool = BlockPool(4)
    table = pool.allocate(2)
    pool.check([table])
    for wrong in ([table[:1]], [table, table[:1]], [[*table, 3]]):
        with pytest.raises(AssertionError):
            pool.check(wrong)


@given(
    index=st.dictionaries(st.binary(min_size=16, max_size=16), st.integers(-3, 20), max_size=20),
    num_blocks=st.integers(2, 12),
)
def test_restored_blocks_are_found_and_impossible_entries_passed_over(index: dict[bytes, int], num_blocks: int) -> None:
    pool = BlockPool(num_blocks)
    pool.restore(index)
    pool.check([])
    possible = {block for block in index.values() if 0 < block < num_blocks}
    assert pool.num_cached == len(possible)
    assert pool.num_available == num_blocks - 1
    found = {key: pool.find(key) for key in index if pool.find(key) is not None}
    assert set(found.values()) == possible
    assert all(index[key] == block for key, block in found.items())
