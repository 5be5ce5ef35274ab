"""What a proposal does to one worker's pool: forget, seal, release, reserve, in that order, all or nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from augury.errors import FencedError, InvalidRequestError
from augury.types import Grant, Granted, PoolSpec, Proposal, Reserve, Seal
from kvcache_svc.core.groups import FullAttention, KvGroup
from kvcache_svc.core.leases import Leases
from kvcache_svc.core.pool import BlockPool


class Coordinator:
    """One pool with its leases. ``restored`` maps keys to blocks whose content outlived an earlier service process."""

    def __init__(self, spec: PoolSpec, restored: Mapping[bytes, int] | None = None) -> None:
        if spec.block_size < 1:
            raise ValueError(f"a block holds at least one token, got {spec.block_size}")
        self.spec = spec
        self.pool = BlockPool(spec.num_blocks)
        self.leases = Leases(spec.epoch)
        self.num_query_blocks = 0
        self.num_hit_blocks = 0
        self._group: KvGroup = FullAttention(spec.block_size)
        self.pool.restore(dict(restored or {}))

    def reopen(self, spec: PoolSpec) -> None:
        """Fence: a later epoch of the same memory. Every lease ends, cached content stays."""
        assert replace(spec, epoch=self.spec.epoch) == self.spec
        for table in self.leases.fence(spec.epoch):
            self.pool.release(table)
        self.spec = spec

    def step(self, proposal: Proposal) -> Grant:
        """Carry out ``proposal``; a replayed one gets the grant it got.

        Raises FencedError for another epoch or a gap, InvalidRequestError where it names what is not there; in both
        cases nothing has changed.
        """
        replayed = self.leases.replay(proposal.epoch, proposal.seq)
        if replayed is not None:
            return replayed
        self._check(proposal)
        for key in proposal.forgotten:
            self.pool.forget(key)
        for seal in proposal.seals:
            self.pool.seal(self.leases.tables[seal.lease][seal.index], seal.key)
        for lease in proposal.releases:
            self.pool.release(self.leases.tables.pop(lease))
        grant = Grant(
            epoch=proposal.epoch,
            seq=proposal.seq,
            reserves=tuple(self._reserve_all(proposal.reserves)),
            num_available=self.pool.num_available,
        )
        self.leases.answered(grant)
        return grant

    def check(self) -> None:
        """Raise AssertionError unless the block states add up (DESIGN §3.1)."""
        self.pool.check(list(self.leases.tables.values()))

    def _check(self, proposal: Proposal) -> None:
        for seal in proposal.seals:
            self._check_seal(seal)
        if len({(seal.lease, seal.index) for seal in proposal.seals}) < len(proposal.seals):
            raise InvalidRequestError("a block is sealed twice")
        released = set(proposal.releases)
        if len(released) < len(proposal.releases):
            raise InvalidRequestError("a lease is released twice")
        for lease in proposal.releases:
            if lease not in self.leases.tables:
                raise InvalidRequestError(f"lease {lease} is not held")
        if any(reserve.num_slots < 0 for reserve in proposal.reserves):
            raise InvalidRequestError("a reserve of less than no slots")

    def _check_seal(self, seal: Seal) -> None:
        table = self.leases.tables.get(seal.lease)
        if table is None or not 0 <= seal.index < len(table):
            raise InvalidRequestError(f"lease {seal.lease} holds no block {seal.index}")
        if not self.pool.is_open(table[seal.index]):
            raise InvalidRequestError(f"block {seal.index} of lease {seal.lease} is not open")

    def _reserve_all(self, reserves: Sequence[Reserve]) -> Iterator[Granted | None]:
        """New leases are granted in order: after a denial none, so that a small one never overtakes a large one."""
        denied = False
        for reserve in reserves:
            new = reserve.lease not in self.leases.tables
            granted = None if new and denied else self._reserve(reserve)
            denied = denied or (new and granted is None)
            yield granted

    def _reserve(self, reserve: Reserve) -> Granted | None:
        table = self.leases.tables.get(reserve.lease)
        hit = self._hit(reserve) if table is None else []
        count = self._group.num_blocks(reserve.num_slots) - len(hit) - len(table or ())
        if count > self.pool.num_available - self.pool.num_idle(hit):
            return None
        self.pool.touch(hit)
        blocks = hit + self.pool.allocate(max(count, 0))
        self.leases.tables.setdefault(reserve.lease, []).extend(blocks)
        if table is None:
            self.num_query_blocks += len(reserve.keys)
            self.num_hit_blocks += len(hit)
        return Granted(num_hit_blocks=len(hit), blocks=tuple(blocks))

    def _hit(self, reserve: Reserve) -> list[int]:
        return self._group.longest_hit(reserve.keys, self.pool.find)


def open_pool(known: Coordinator | None, spec: PoolSpec, restored: Mapping[bytes, int]) -> Coordinator:
    """The pool that ``spec`` opens: the known one, fenced, if its memory is the same, else a new one.

    Opening twice is opening once. Raises FencedError where ``spec`` is not later than the known pool's epoch.
    """
    if known is None:
        return Coordinator(spec, restored)
    if spec == known.spec:
        return known
    if spec.epoch <= known.spec.epoch:
        raise FencedError(f"epoch {spec.epoch} is not later than {known.spec.epoch}")
    if replace(spec, epoch=known.spec.epoch) != known.spec:
        return Coordinator(spec)
    known.reopen(spec)
    return known
