"""Proposals against the naive pool: order, idempotence, all or nothing, admission, fences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from augury.errors import FencedError, InvalidRequestError
from augury.types import Grant, Granted, PoolSpec, Proposal, Reserve, Seal
from kvcache_svc.core.coordinator import Coordinator, open_pool
from kvcache_svc.core.leases import Leases
from tests.kvcache.naive import NaivePool

KEYS = [bytes([n]) * 16 for n in range(9)]
keys = st.sampled_from(KEYS)


def spec(*, num_blocks: int = 9, block_size: int = 4, epoch: int = 1) -> PoolSpec:
    return PoolSpec(
        pool="w", incarnation="i", fingerprint="f", epoch=epoch, num_blocks=num_blocks, block_size=block_size
    )


def proposal(seq: int, reserves: Sequence[Reserve] = (), **fields: Any) -> Proposal:
    base = Proposal(pool="w", epoch=1, seq=seq, reserves=tuple(reserves))
    return replace(base, **fields)


def reserve(lease: int, num_slots: int, wanted: Sequence[bytes] = ()) -> Reserve:
    return Reserve(lease=lease, num_slots=num_slots, keys=tuple(wanted))


class CoordinatorMachine(RuleBasedStateMachine):
    """Valid, broken, repeated and stale proposals, and fences, beside the naive pool."""

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 4),
        restored=st.dictionaries(keys, st.integers(1, 13), max_size=4),
    )
    def make(self, num_blocks: int, block_size: int, restored: dict[bytes, int]) -> None:
        self.spec = spec(num_blocks=num_blocks, block_size=block_size)
        self.kv = Coordinator(self.spec, restored)
        self.naive = NaivePool(num_blocks)
        for block, key in {block: key for key, block in restored.items() if block < num_blocks}.items():
            self.naive.seal(block, key)
            self.naive.cached.append(block)
        self.registry = dict(self.naive.index)
        self.last: tuple[Proposal, Grant] | None = None
        self.seq = 0
        self.num_leases = 0

    @rule(data=st.data(), times=st.integers(1, 3))
    def step(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            wanted = self.draw_proposal(data)
            grant = self.kv.step(wanted)
            self.seq += 1
            self.last = wanted, grant
            self.replay_on_twin(wanted, grant)
            assert (grant.epoch, grant.seq) == (wanted.epoch, wanted.seq)
            assert grant.num_available == self.naive.num_available

    @precondition(lambda self: self.last)
    @rule()
    def repeat(self) -> None:
        assert self.last is not None
        wanted, grant = self.last
        assert self.kv.step(wanted) == grant

    @rule(offset=st.sampled_from([-2, -1, 2, 3]), epochs=st.sampled_from([-1, 0, 1]), data=st.data())
    def send_out_of_order(self, offset: int, epochs: int, data: st.DataObject) -> None:
        wanted = self.draw_proposal(data)
        with pytest.raises(FencedError):
            self.kv.step(replace(wanted, seq=self.seq + offset, epoch=wanted.epoch + epochs))

    @rule(data=st.data())
    def send_nonsense(self, data: st.DataObject) -> None:
        wanted = self.draw_proposal(data)
        absent, key = self.num_leases + 5, KEYS[0]
        broken = [
            replace(wanted, seals=(*wanted.seals, Seal(lease=absent, index=0, key=key))),
            replace(wanted, releases=(*wanted.releases, absent)),
            replace(wanted, reserves=(*wanted.reserves, reserve(absent, -1))),
        ]
        for lease, table in self.naive.tables.items():
            broken.append(replace(wanted, releases=(*wanted.releases, lease, lease)))
            broken += [replace(wanted, seals=(Seal(lease=lease, index=n, key=key),)) for n in (-1, len(table))]
            for index, block in enumerate(table):
                seal = Seal(lease=lease, index=index, key=key)
                seals = (seal, seal) if block in self.naive.open else (seal,)
                broken.append(replace(wanted, seals=seals))
        for wrong in broken:
            with pytest.raises(InvalidRequestError):
                self.kv.step(wrong)

    @rule(later=st.integers(1, 3))
    def fence(self, later: int) -> None:
        old = proposal(self.seq + 1, epoch=self.spec.epoch)
        self.spec = replace(self.spec, epoch=self.spec.epoch + later)
        assert open_pool(self.kv, self.spec, {}) is self.kv
        assert open_pool(self.kv, self.spec, {}) is self.kv
        for lease in list(self.naive.tables):
            self.naive.release(lease)
        self.last, self.seq = None, 0
        with pytest.raises(FencedError):
            self.kv.step(old)
        with pytest.raises(FencedError):
            open_pool(self.kv, replace(self.spec, epoch=self.spec.epoch - 1), {})

    @rule()
    def tell_registry(self) -> None:
        gained, lost = self.kv.pool.take_index_changes()
        self.registry = {key: block for key, block in self.registry.items() if key not in lost} | dict(gained)
        assert self.registry == self.naive.index

    @invariant()
    def equals_its_twin(self) -> None:
        self.kv.check()
        assert self.kv.leases.tables == self.naive.tables
        assert self.kv.pool.census() == self.naive.census()
        assert {key: self.kv.pool.find(key) for key in KEYS if self.kv.pool.find(key)} == self.naive.index

    def draw_proposal(self, data: st.DataObject) -> Proposal:
        tables, size = self.naive.tables, self.spec.block_size
        places = [(lease, n) for lease, table in tables.items() for n, b in enumerate(table) if b in self.naive.open]
        sealed = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=3)) if places else []
        released = data.draw(st.lists(st.sampled_from(sorted(tables)), unique=True, max_size=2)) if tables else []
        kept = sorted(set(tables) - set(released))
        growing = data.draw(st.lists(st.sampled_from(kept), unique=True, max_size=3)) if kept else []
        num_new = data.draw(st.integers(0, 3))
        slots = st.integers(0, self.spec.num_blocks * size)
        new = range(self.num_leases + 1, self.num_leases + 1 + num_new)
        return Proposal(
            pool="w",
            epoch=self.spec.epoch,
            seq=self.seq + 1,
            forgotten=tuple(data.draw(st.lists(keys, max_size=2))),
            seals=tuple(Seal(lease=lease, index=n, key=data.draw(keys)) for lease, n in sealed),
            releases=tuple(released),
            reserves=(
                *(reserve(lease, data.draw(slots)) for lease in growing),
                *(
                    reserve(lease, data.draw(slots), data.draw(st.lists(keys, unique=True, max_size=4)))
                    for lease in new
                ),
            ),
        )

    def replay_on_twin(self, wanted: Proposal, grant: Grant) -> None:
        for key in wanted.forgotten:
            self.naive.forget(key)
        for seal in wanted.seals:
            self.naive.seal(self.naive.tables[seal.lease][seal.index], seal.key)
        for lease in wanted.releases:
            self.naive.release(lease)
        denied = False
        for asked, granted in zip(wanted.reserves, grant.reserves, strict=True):
            new = asked.lease not in self.naive.tables
            hit = self.naive.hit(asked.keys) if new else []
            num_new = self.num_blocks_short(asked, hit)
            room = self.naive.num_available - sum(block in self.naive.cached for block in hit)
            if granted is None:
                assert num_new > room or (new and denied)
                denied = denied or new
                continue
            assert num_new <= room
            assert not (new and denied)
            assert granted.num_hit_blocks == len(hit)
            assert list(granted.blocks[: len(hit)]) == hit
            assert len(granted.blocks) == len(hit) + num_new
            self.naive.hold(asked.lease, hit, granted.blocks[len(hit) :])
        self.num_leases = max(self.num_leases, *self.naive.tables, 0)

    def num_blocks_short(self, asked: Reserve, hit: Sequence[int]) -> int:
        table = self.naive.tables.get(asked.lease, [])
        return max(-(-asked.num_slots // self.spec.block_size) - len(hit) - len(table), 0)


TestCoordinatorMachine = CoordinatorMachine.TestCase


def granted(grant: Grant) -> list[Granted]:
    assert all(grant.reserves)
    return [part for part in grant.reserves if part]


def test_forget_seal_release_reserve_go_in_this_order() -> None:
    kv = Coordinator(spec(num_blocks=3))
    kv.step(proposal(1, [reserve(1, 8)]))
    kv.step(
        proposal(2, seals=(Seal(lease=1, index=0, key=KEYS[0]), Seal(lease=1, index=1, key=KEYS[1])), releases=(1,))
    )
    grant = kv.step(proposal(3, [reserve(2, 8, KEYS[:2])], forgotten=(KEYS[1],)))
    assert granted(grant)[0].num_hit_blocks == 1
    sealing = Seal(lease=2, index=1, key=KEYS[1])
    grant = kv.step(proposal(4, [reserve(3, 8, KEYS[:2])], forgotten=(KEYS[1],), seals=(sealing,), releases=(2,)))
    assert granted(grant)[0].num_hit_blocks == 2


def test_a_small_newcomer_does_not_overtake_a_denied_one_but_a_running_one_grows() -> None:
    kv = Coordinator(spec(num_blocks=5))
    kv.step(proposal(1, [reserve(1, 4)]))
    grant = kv.step(proposal(2, [reserve(2, 16), reserve(3, 4), reserve(1, 8)]))
    assert [part is not None for part in grant.reserves] == [False, False, True]
    assert sorted(kv.leases.tables) == [1]


def test_a_hit_on_idle_blocks_counts_against_what_is_available() -> None:
    kv = Coordinator(spec(num_blocks=4), restored={KEYS[0]: 1, KEYS[1]: 2})
    assert kv.step(proposal(1, [reserve(1, 16, KEYS[:2])])).reserves == (None,)
    assert granted(kv.step(proposal(2, [reserve(1, 12, KEYS[:2])])))[0].blocks == (1, 2, 3)
    assert (kv.num_query_blocks, kv.num_hit_blocks) == (2, 2)


def test_a_repeated_proposal_takes_nothing_twice() -> None:
    kv = Coordinator(spec())
    wanted = proposal(1, [reserve(1, 8)])
    assert kv.step(wanted) is kv.step(wanted)
    assert kv.pool.num_available == 6


def test_a_refused_proposal_may_be_put_right_under_its_number() -> None:
    kv = Coordinator(spec())
    with pytest.raises(InvalidRequestError, match="lease 7"):
        kv.step(proposal(1, [reserve(1, 8)], releases=(7,)))
    assert granted(kv.step(proposal(1, [reserve(1, 8)])))[0].num_hit_blocks == 0


def test_content_outlives_a_fence_and_leases_do_not() -> None:
    kv = Coordinator(spec())
    kv.step(proposal(1, [reserve(1, 8)]))
    kv.step(proposal(2, seals=(Seal(lease=1, index=0, key=KEYS[0]),)))
    kv.reopen(spec(epoch=2))
    assert (kv.pool.num_available, kv.pool.num_cached) == (8, 1)
    grant = kv.step(replace(proposal(1, [reserve(1, 8, KEYS[:1])]), epoch=2))
    assert granted(grant)[0].num_hit_blocks == 1


@pytest.mark.parametrize("change", [{"incarnation": "j"}, {"fingerprint": "g"}, {"num_blocks": 8}, {"block_size": 2}])
def test_another_memory_under_the_same_name_is_a_new_pool(change: dict[str, Any]) -> None:
    kv = Coordinator(spec(), restored={KEYS[0]: 1})
    other = replace(spec(epoch=2), **change)
    opened = open_pool(kv, other, {KEYS[0]: 1})
    assert opened is not kv
    assert opened.pool.num_cached == 0
    assert opened.spec == other


def test_a_restarted_service_restores_what_the_registry_knew() -> None:
    opened = open_pool(None, spec(), {KEYS[0]: 3})
    grant = opened.step(proposal(1, [reserve(1, 8, KEYS[:2])]))
    assert granted(grant)[0].blocks[0] == 3


def test_an_epoch_that_is_not_later_is_refused() -> None:
    with pytest.raises(FencedError):
        Leases(3).fence(3)
    with pytest.raises(FencedError):
        open_pool(Coordinator(spec(epoch=3)), replace(spec(epoch=3), incarnation="j"), {})


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Coordinator(spec(block_size=0))
