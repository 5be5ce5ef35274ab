"""What a proposal does to one worker's pool: forget, seal, release, reserve, in that order, all or nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from augury.errors import FencedError, InvalidRequestError
from augury.geometry import NULL_BLOCK, scheduler_block
from augury.types import Grant, Granted, Holding, PoolSpec, Proposal, Reserve, Seal
from kvcache_svc.core.adoption import sealed_blocks
from kvcache_svc.core.hits import Prefixes
from kvcache_svc.core.inspection import GroupUsage, Inspection
from kvcache_svc.core.leases import Leases, Tables
from kvcache_svc.core.pool import BlockPool


class Coordinator:
    """One pool with its leases, each with a block table for every group."""

    def __init__(
        self,
        spec: PoolSpec,
        content: Mapping[bytes, int] | None = None,
        holdings: Sequence[Holding] = (),
        now: float = 0.0,
    ) -> None:
        """``content`` maps keys to blocks that outlived an earlier service process, ``holdings`` are its leases.

        Content that contradicts a holding, or the pool, is passed over. Raises ValueError for an impossible pool,
        InvalidRequestError for holdings that contradict it or one another. ``now`` as in ``step``.
        """
        if not spec.groups:
            raise ValueError("a pool serves at least one group")
        keys = sealed_blocks(spec, holdings)
        self.spec = spec
        self.pool = BlockPool(spec.num_blocks, len(spec.groups), now)
        self.leases = Leases(spec.epoch, {each.lease: [list(table) for table in each.blocks] for each in holdings})
        self.pool.adopt(self.leases.tables.values(), keys)
        self.pool.restore(content or {})
        self._prefixes = Prefixes(spec.groups, self.pool.find, self.pool.history.was_evicted)
        self._windows = [index for index, group in enumerate(spec.groups) if group.window is not None]
        self._strides = [scheduler_block(spec.groups) // group.block_size for group in spec.groups]
        self._nothing = Granted(blocks=((),) * len(spec.groups))
        self._no_keys: tuple[tuple[bytes, ...], ...] = ((),) * len(spec.groups)

    def reopen(self, spec: PoolSpec, now: float = 0.0) -> None:
        """Fence: a later epoch of the same memory. Every lease ends, cached content stays."""
        assert replace(spec, epoch=self.spec.epoch) == self.spec
        self.pool.now = now
        for tables in self.leases.fence(spec.epoch):
            self._release(tables)
        self.spec = spec

    def step(self, proposal: Proposal, now: float = 0.0) -> Grant:
        """Carry out ``proposal`` at ``now`` (seconds, monotonic); a replayed one gets the grant it got.

        What windows have passed by the reserves' computed tokens is given back before the first of them, denied or not.

        Raises FencedError for another epoch or a gap, InvalidRequestError where it names what is not there; in both
        cases nothing has changed.
        """
        replayed = self.leases.replay(proposal.epoch, proposal.seq)
        if replayed is not None:
            return replayed
        sealed = self._check(proposal)
        self.pool.now = now
        for key in proposal.forgotten:
            self.pool.forget(key)
        for block, seal in zip(sealed, proposal.seals, strict=True):
            self.pool.seal(block, seal.key)
        for lease in proposal.releases:
            self._release(self.leases.tables.pop(lease))
        if self._windows:
            self._free_all_passed(proposal.reserves)
        grant = Grant(
            epoch=proposal.epoch,
            seq=proposal.seq,
            reserves=tuple(self._reserve_all(proposal.reserves)),
            num_available=self.pool.num_available,
        )
        self.leases.answered(grant)
        return grant

    def inspect(self, num_hottest: int = 10) -> Inspection:
        """The pool at this moment, and its ``num_hottest`` hottest prefixes."""
        history = self.pool.history
        return Inspection(
            census=self.pool.census(),
            groups=tuple(map(self._usage, range(len(self.spec.groups)))),
            num_leases=len(self.leases.tables),
            lookups=history.lookups(),
            lifetime=history.lifetimes.histogram(),
            idle=history.idle_times.histogram(),
            hottest=history.hottest(num_hottest),
        )

    def check(self) -> None:
        """Raise AssertionError unless the block states add up (DESIGN §3.1) and no lease lacks a block that it reads:
        the null block stands only at the left end of a window group's table.
        """
        self.pool.check(chain.from_iterable(self.leases.tables.values()))
        for tables in self.leases.tables.values():
            for group, table in zip(self.spec.groups, tables, strict=True):
                num_null = table.count(NULL_BLOCK)
                assert not num_null or group.window is not None, "a null block where all positions are read"
                assert not any(table[:num_null]), "a null block between others"

    # --- is it possible ---

    def _check(self, proposal: Proposal) -> list[int]:
        """The blocks that the proposal's seals name, in their order."""
        sealed = [self._open_block(seal) for seal in proposal.seals]
        if len(set(sealed)) < len(sealed):
            raise InvalidRequestError("a block is sealed twice")
        released = set(proposal.releases)
        if len(released) < len(proposal.releases):
            raise InvalidRequestError("a lease is released twice")
        for lease in proposal.releases:
            if lease not in self.leases.tables:
                raise InvalidRequestError(f"lease {lease} is not held")
        if len({reserve.lease for reserve in proposal.reserves}) < len(proposal.reserves):
            raise InvalidRequestError("a lease is reserved for twice")
        for reserve in proposal.reserves:
            self._check_reserve(reserve, reserve.lease not in self.leases.tables or reserve.lease in released)
        return sealed

    def _open_block(self, seal: Seal) -> int:
        tables = self.leases.tables.get(seal.lease)
        if tables is None or not 0 <= seal.group < len(tables) or not 0 <= seal.index < len(tables[seal.group]):
            raise InvalidRequestError(f"lease {seal.lease} holds no block {seal.index} in group {seal.group}")
        block = tables[seal.group][seal.index]
        if not self.pool.is_open(block):
            raise InvalidRequestError(f"block {seal.index} of lease {seal.lease} in group {seal.group} is not open")
        return block

    def _check_reserve(self, reserve: Reserve, is_new: bool) -> None:
        if reserve.num_slots < 0 or reserve.num_ahead < 0 or reserve.num_computed < 0:
            raise InvalidRequestError("a reserve of less than no slots")
        if not is_new:
            tables = self.leases.tables[reserve.lease]
            for index in self._windows:
                if reserve.num_computed > len(tables[index]) * self.spec.groups[index].block_size:
                    raise InvalidRequestError(f"lease {reserve.lease} computed tokens for which it has no slots")
        elif reserve.keys:
            if len(reserve.keys) != len(self.spec.groups):
                raise InvalidRequestError(f"keys of {len(reserve.keys)} groups for lease {reserve.lease}")
            for group, keys in zip(self.spec.groups, reserve.keys, strict=True):
                if len(keys) * group.block_size > reserve.num_slots:
                    raise InvalidRequestError(f"more keys than slots for lease {reserve.lease}")

    # --- carry it out ---

    def _release(self, tables: Tables) -> None:
        """Give a lease's blocks back, so that of all groups together the leftmost are evicted last."""
        if len(tables) == 1:
            self.pool.release(tables[0])
            return
        columns = [table[n::stride] for table, stride in zip(tables, self._strides, strict=True) for n in range(stride)]
        self.pool.release(list(chain.from_iterable(zip_longest(*columns, fillvalue=NULL_BLOCK))))

    def _free_all_passed(self, reserves: Sequence[Reserve]) -> None:
        for reserve in reserves:
            tables = self.leases.tables.get(reserve.lease)
            if tables is not None:
                self._free_passed(tables, reserve.num_computed)

    def _free_passed(self, tables: Tables, num_computed: int) -> None:
        """Give back blocks that no window reaches again; in the lease's tables the null block takes their place."""
        for index in self._windows:
            table, end = tables[index], self.spec.groups[index].num_skipped(num_computed)
            start = end
            while start and table[start - 1] != NULL_BLOCK:
                start -= 1
            self.pool.release(table[start:end])
            table[start:end] = [NULL_BLOCK] * (end - start)

    def _reserve_all(self, reserves: Sequence[Reserve]) -> Iterator[Granted | None]:
        """New leases are granted in order: after a denial none, so that a small one never overtakes a large one."""
        denied = False
        for reserve in reserves:
            tables = self.leases.tables.get(reserve.lease)
            if tables is not None:
                yield self._grow(tables, reserve)
                continue
            granted = None if denied else self._admit(reserve)
            denied = granted is None
            yield granted

    def _admit(self, reserve: Reserve) -> Granted | None:
        """A new lease: all groups' hits are referenced before anything is allocated, which might evict them."""
        hit = self._prefixes.hit(reserve.keys or self._no_keys)
        counts = self._counts_short(hit.tables, reserve.num_slots, hit.num_tokens + reserve.num_ahead)
        if sum(counts) > self.pool.num_available - self.pool.num_idle(chain.from_iterable(hit.tables)):
            return None
        for group, table in enumerate(hit.tables):
            self.pool.touch(table, group)
        self._append(hit.tables, counts)
        self.leases.tables[reserve.lease] = hit.tables
        if hit.num_named:
            self.pool.history.looked_up(hit)
        return Granted(
            blocks=tuple(map(tuple, hit.tables)),
            num_computed=hit.num_tokens,
            num_sealed=hit.num_sealed,
            miss=hit.miss,
        )

    def _grow(self, tables: Tables, reserve: Reserve) -> Granted | None:
        num_reached = reserve.num_computed + reserve.num_ahead
        if len(tables) == 1:
            return self._grow_only(tables[0], self.spec.groups[0].table_length(reserve.num_slots, num_reached))
        counts = self._counts_short(tables, reserve.num_slots, num_reached)
        if sum(counts) > self.pool.num_available:
            return None
        return Granted(blocks=self._append(tables, counts))

    def _grow_only(self, table: list[int], length: int) -> Granted | None:
        """As ``_grow`` for a pool of one group, the common and hottest case."""
        count = length - len(table)
        if count <= 0:
            return self._nothing
        if count > self.pool.num_available:
            return None
        blocks = self.pool.allocate(count)
        table += blocks
        return Granted(blocks=(tuple(blocks),))

    def _counts_short(self, tables: Tables, num_slots: int, num_reached: int) -> list[int]:
        """Blocks that each group's table lacks."""
        return [
            max(group.table_length(num_slots, num_reached) - len(table), 0)
            for group, table in zip(self.spec.groups, tables, strict=True)
        ]

    def _append(self, tables: Tables, counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """So many OPEN blocks more for each group's table; they are returned."""
        appended = []
        for group, count in enumerate(counts):
            blocks = self.pool.allocate(count, group) if count else []
            tables[group] += blocks
            appended.append(tuple(blocks))
        return tuple(appended)

    def _usage(self, group: int) -> GroupUsage:
        tables = [lease[group] for lease in self.leases.tables.values()]
        return GroupUsage(
            open=self.pool.num_open[group],
            sealed=self.pool.num_sealed[group],
            held=sum(len(table) - table.count(NULL_BLOCK) for table in tables),
        )


def open_pool(
    known: Coordinator | None,
    spec: PoolSpec,
    content: Mapping[bytes, int] | None = None,
    holdings: Sequence[Holding] = (),
    now: float = 0.0,
) -> Coordinator:
    """The pool that ``spec`` opens: the known one, fenced, if its memory is the same, else a new one.

    Leases to take over make a new one too: the scheduler and worker who tell of them know better. Opening twice is
    opening once. Raises FencedError where ``spec`` is not later than the known pool's epoch, InvalidRequestError for
    impossible holdings.
    """
    if known is None:
        return Coordinator(spec, content, holdings, now)
    if spec == known.spec:
        return known
    if spec.epoch <= known.spec.epoch:
        raise FencedError(f"epoch {spec.epoch} is not later than {known.spec.epoch}")
    if holdings or replace(spec, epoch=known.spec.epoch) != known.spec:
        return Coordinator(spec, content, holdings, now)
    known.reopen(spec, now)
    return known
