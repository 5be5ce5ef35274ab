"""Valid, broken, repeated and stale proposals, fences and restarts of the service, beside the naive twin."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from augury.errors import FencedError, InvalidRequestError
from augury.geometry import KvGroup, scheduler_block
from augury.keys import group_key
from augury.types import Grant, Granted, Proposal, Reserve, Seal
from kvcache_svc.core.coordinator import open_pool
from tests.kvcache.naive import NaiveHits, NaivePool, ceil_div, is_dead
from tests.kvcache.prompts import Keys, names, proposal, spec

STRAY = [bytes([n]) * 16 for n in range(4)]
LOOKAHEAD = 2
NUM_TOKENS = 24
Place = tuple[int, int, int]


@st.composite
def kv_groups(draw: st.DrawFn) -> tuple[KvGroup, ...]:
    """One to three groups of any kind; where drafts have one of their own, it may be rebuilt."""
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        window = draw(st.none() | st.integers(1, 9))
        has_drafts = draw(st.booleans())
        behind = window is not None and has_drafts
        groups.append(
            KvGroup(
                block_size=draw(st.sampled_from([1, 2, 3, 4])),
                window=window,
                has_drafts=has_drafts,
                num_retained=draw(st.integers(0, 3)) if behind else 0,
                num_rebuilt=draw(st.none() | st.integers(0, 8)) if behind else None,
            )
        )
    return tuple(groups)


prompts = st.lists(st.integers(0, 1), max_size=NUM_TOKENS)


class KvMachine(RuleBasedStateMachine):
    @initialize(groups=kv_groups(), num_blocks=st.integers(2, 40), data=st.data())
    def make(self, groups: tuple[KvGroup, ...], num_blocks: int, data: st.DataObject) -> None:
        self.groups = groups
        self.spec = spec(*groups, num_blocks=num_blocks)
        self.naive = NaivePool(num_blocks, len(groups))
        self.prompts: dict[int, Keys] = {}
        self.num_leases = 0
        self.num_lookups = 0
        self.start(data)

    def start(self, data: st.DataObject, num_kept: int = 0) -> None:
        """A new process takes over all leases, ``num_kept`` keys of what was known, and what it is told wrongly."""
        named = [key for keys in names(data.draw(prompts), self.groups, LOOKAHEAD) for key in keys]
        told = data.draw(st.lists(st.tuples(st.sampled_from(named), st.integers(-1, 41)), max_size=4)) if named else []
        content = dict(list(self.naive.index.items())[:num_kept]) | dict(told)
        holdings = self.naive.holdings()
        self.kv = open_pool(None, self.spec, content, holdings)
        assert open_pool(self.kv, self.spec, {}, holdings) is self.kv
        self.naive.adopt(holdings)
        self.registry = dict(self.naive.index)
        self.naive.restore(content)
        self.registry = dict(self.naive.index)
        self.kv.pool.take_index_changes()
        self.last: tuple[Proposal, Grant] | None = None
        self.seq = self.num_lookups = 0

    @rule(data=st.data(), num_kept=st.integers(0, 20))
    def restart(self, data: st.DataObject, num_kept: int) -> None:
        self.start(data, num_kept)

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
        for wrong in self.nonsense(wanted):
            with pytest.raises(InvalidRequestError):
                self.kv.step(wrong)

    @rule(later=st.integers(1, 3))
    def fence(self, later: int) -> None:
        old = proposal(self.seq + 1, epoch=self.spec.epoch)
        self.spec = replace(self.spec, epoch=self.spec.epoch + later)
        assert open_pool(self.kv, self.spec) is self.kv
        assert open_pool(self.kv, self.spec) is self.kv
        for lease in list(self.naive.tables):
            self.naive.release(lease, self.groups)
        self.last, self.seq = None, 0
        with pytest.raises(FencedError):
            self.kv.step(old)
        with pytest.raises(FencedError):
            open_pool(self.kv, replace(self.spec, epoch=self.spec.epoch - 1))

    @rule()
    def tell_registry(self) -> None:
        gained, lost = self.kv.pool.take_index_changes()
        assert not dict(gained).keys() & set(lost)
        self.registry = {key: block for key, block in self.registry.items() if key not in lost} | dict(gained)
        assert self.registry == self.naive.index

    @invariant()
    def equals_its_twin(self) -> None:
        self.kv.check()
        assert self.kv.leases.tables == self.naive.tables
        found = {key: self.kv.pool.find(key) for key in self.naive.index}
        assert found == self.naive.index
        assert list(self.kv.pool._cached) == self.naive.cached
        seen = self.kv.inspect(num_hottest=1000)
        assert seen.census == self.naive.census()
        assert seen.groups == tuple(map(self.naive.usage, range(len(self.groups))))
        assert (seen.num_leases, seen.lookups.num_lookups) == (len(self.naive.tables), self.num_lookups)
        assert {prefix.key: prefix.num_hits for prefix in seen.hottest} == self.naive.ends

    def nonsense(self, wanted: Proposal) -> list[Proposal]:
        absent, key, groups = self.num_leases + 5, STRAY[0], self.groups
        stray = Seal(lease=absent, index=0, key=key)
        wrong = [
            Reserve(lease=absent, num_slots=-1, num_ahead=0),
            Reserve(lease=absent, num_slots=1, num_ahead=-1),
            Reserve(lease=absent, num_slots=1, num_ahead=1, num_computed=-1),
            Reserve(lease=absent, num_slots=99, num_ahead=1, keys=((),) * (len(groups) + 1)),
            Reserve(lease=absent, num_slots=groups[0].block_size - 1, num_ahead=1, keys=((key,),) * len(groups)),
        ]
        twice = Reserve(lease=absent, num_slots=1, num_ahead=1)
        broken = [replace(wanted, reserves=(*wanted.reserves, reserve)) for reserve in wrong]
        broken.append(replace(wanted, reserves=(*wanted.reserves, twice, twice)))
        broken.append(replace(wanted, seals=(*wanted.seals, stray)))
        broken.append(replace(wanted, releases=(*wanted.releases, absent)))
        for lease, tables in self.naive.tables.items():
            broken.append(replace(wanted, releases=(*wanted.releases, lease, lease)))
            bad = [Seal(lease=lease, group=g, index=0, key=key) for g in (-1, len(tables))]
            for group, table in enumerate(tables):
                bad += [Seal(lease=lease, group=group, index=n, key=key) for n in (-1, len(table))]
                bad += [
                    Seal(lease=lease, group=group, index=n, key=key)
                    for n, block in enumerate(table)
                    if block not in self.naive.open
                ]
                if groups[group].window is not None:
                    ahead = len(table) * groups[group].block_size + 1
                    reserve = Reserve(lease=lease, num_slots=99, num_ahead=0, num_computed=ahead)
                    broken.append(replace(wanted, releases=(), reserves=(reserve,)))
            broken += [replace(wanted, seals=(seal,)) for seal in bad]
            broken += [
                replace(wanted, seals=(Seal(lease=lease, group=g, index=n, key=key),) * 2)
                for g, n in [(g, n) for g, table in enumerate(tables) for n in range(len(table))]
            ]
        return broken

    def draw_proposal(self, data: st.DataObject) -> Proposal:
        tables = self.naive.tables
        places = [
            (lease, group, index)
            for lease, lease_tables in tables.items()
            for group, table in enumerate(lease_tables)
            for index, block in enumerate(table)
            if block in self.naive.open
        ]
        sealed = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=9)) if places else []
        released = data.draw(st.lists(st.sampled_from(sorted(tables)), unique=True, max_size=2)) if tables else []
        kept = sorted(set(tables) - set(released))
        growing = data.draw(st.lists(st.sampled_from(kept), unique=True, max_size=3)) if kept else []
        new = range(self.num_leases + 1, self.num_leases + 1 + data.draw(st.integers(0, 3)))
        forgettable = sorted(self.naive.index) + STRAY
        return Proposal(
            pool="w",
            epoch=self.spec.epoch,
            seq=self.seq + 1,
            forgotten=tuple(data.draw(st.lists(st.sampled_from(forgettable), max_size=2))),
            seals=tuple(self.draw_seal(data, place) for place in sealed),
            releases=tuple(released),
            reserves=(
                *(self.draw_growth(data, lease) for lease in growing),
                *(self.draw_admission(data, lease) for lease in new),
            ),
        )

    def draw_seal(self, data: st.DataObject, place: Place) -> Seal:
        lease, group, index = place
        named = self.prompts[lease][group]
        stray = group_key(data.draw(st.sampled_from(STRAY)), group)
        return Seal(lease=lease, group=group, index=index, key=named[index] if index < len(named) else stray)

    def draw_growth(self, data: st.DataObject, lease: int) -> Reserve:
        held = [len(t) * g.block_size for t, g in zip(self.naive.tables[lease], self.groups, strict=True)]
        return Reserve(
            lease=lease,
            num_slots=data.draw(st.integers(0, 40)),
            num_ahead=data.draw(st.integers(0, 12)),
            num_computed=data.draw(st.integers(0, min(held))),
        )

    def draw_admission(self, data: st.DataObject, lease: int) -> Reserve:
        tokens = data.draw(prompts)
        self.prompts[lease] = names([*tokens, *[2] * NUM_TOKENS], self.groups, LOOKAHEAD)
        wanted = names(tokens, self.groups, LOOKAHEAD)
        cut = data.draw(st.integers(0, NUM_TOKENS))
        return Reserve(
            lease=lease,
            num_slots=len(tokens) + data.draw(st.integers(0, 4)),
            num_ahead=data.draw(st.integers(0, 12)),
            keys=tuple(keys[: max(cut, 1)] for keys in wanted),
        )

    def replay_on_twin(self, wanted: Proposal, grant: Grant) -> None:
        for key in wanted.forgotten:
            self.naive.forget(key)
        for seal in wanted.seals:
            self.naive.seal(self.naive.tables[seal.lease][seal.group][seal.index], seal.key)
        for lease in wanted.releases:
            self.naive.release(lease, self.groups)
        for asked in wanted.reserves:
            for group, table in enumerate(self.naive.tables.get(asked.lease, [])):
                for index in reversed(range(len(table))):
                    if is_dead(self.groups[group], index, asked.num_computed):
                        self.naive.drop(asked.lease, group, index)
        denied = False
        for asked, answer in zip(wanted.reserves, grant.reserves, strict=True):
            if asked.lease in self.naive.tables:
                self.grow_twin(asked, answer)
            elif denied:
                assert answer is None
            else:
                self.admit_to_twin(asked, answer)
                denied = answer is None
        self.num_leases = max(self.num_leases, *(asked.lease for asked in wanted.reserves), 0)

    def grow_twin(self, asked: Reserve, answer: Granted | None) -> None:
        short = self.num_short(asked, self.naive.tables[asked.lease], asked.num_computed)
        assert (answer is None) == (sum(short) > self.naive.num_available)
        if answer is not None:
            assert [len(blocks) for blocks in answer.blocks] == short
            assert answer == Granted(blocks=answer.blocks)
            self.naive.hold(asked.lease, [[] for _ in self.groups], answer.blocks)

    def admit_to_twin(self, asked: Reserve, answer: Granted | None) -> None:
        hits = NaiveHits(self.groups, self.naive, asked.keys)
        tables = hits.tables()
        short = self.num_short(asked, tables, hits.num_tokens)
        idle = sum(block in self.naive.cached for table in tables for block in table)
        assert (answer is None) == (sum(short) > self.naive.num_available - idle)
        if answer is None:
            return
        assert (answer.num_computed, answer.num_sealed) == (hits.num_tokens, hits.num_sealed())
        assert hits.allows(answer.miss), (answer.miss, hits.num_tokens)
        assert hits.num_tokens % scheduler_block(self.groups) == 0
        new = [blocks[len(table) :] for blocks, table in zip(answer.blocks, tables, strict=True)]
        assert [list(blocks[: len(table)]) for blocks, table in zip(answer.blocks, tables, strict=True)] == tables
        assert [len(blocks) for blocks in new] == short
        self.naive.hold(asked.lease, tables, new)
        self.num_lookups += hits.num_named() > 0
        if hits.num_tokens:
            ends = next(g for g in hits.all if g not in hits.short)
            self.naive.ends[asked.keys[ends][hits.num_tokens // self.groups[ends].block_size - 1]] += 1

    def num_short(self, asked: Reserve, tables: list[list[int]], num_computed: int) -> list[int]:
        short = []
        for group, table in zip(self.groups, tables, strict=True):
            reached = num_computed + asked.num_ahead if group.window is not None else asked.num_slots
            length = ceil_div(min(asked.num_slots, reached), group.block_size)
            short.append(max(length - len(table), 0))
        return short
