"""The mirror of one pool, and what Redis has yet to learn of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from augury import limits
from augury.types import PoolSpec
from kvcache_svc.records import LeasesRecord, PoolRecord, leases_record, leases_value
from kvcache_svc.registry import Leases

BATCH_ENTRIES = 1000
"""Entries in one transaction: about a millisecond for either side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What Redis holds after the last batch: the pool's record, and how many registry entries."""

    record: PoolRecord
    num_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Entries to set and keys to delete, with the record that stands once they are."""

    record: PoolRecord
    present: dict[bytes, int]
    absent: list[bytes]


class Mirror:
    """``stored`` is None where Redis has to be written anew."""

    def __init__(self, spec: PoolSpec, blocks: dict[bytes, int], stored: Stored | None) -> None:
        self.spec = spec
        self.blocks = blocks
        self.stored = stored
        self.anew_from = 0.0
        """Loop time before which Redis is not written anew again."""
        self.foreign_epoch: int | None = None
        """Another service writes this pool in Redis, at this later epoch."""
        self.leases: Leases | None = None
        self._told: LeasesRecord | None = None
        self._dirty: dict[bytes, None] = {}
        self._backlog: list[bytes] = []

    def record(self, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        for key in gone:
            self.blocks.pop(key, None)
        self.blocks.update(sealed)
        if self.stored is None:
            return
        for key in (*gone, *(key for key, _ in sealed)):
            self._dirty.pop(key, None)
            self._dirty[key] = None
        if len(self._dirty) - len(self.blocks) > limits.MAX_REGISTRY_QUEUE:
            self.lose()

    def lose(self) -> None:
        """What Redis holds of this pool is unknown, or too far behind to be worth a journal."""
        self.stored = None
        self._told = None
        self._dirty = {}
        self._backlog = []

    def restart(self) -> None:
        """Redis holds nothing of this pool: everything is to be written."""
        self.stored = Stored(record=PoolRecord(spec=self.spec, batch=0), num_entries=0)
        self._told = None
        self._dirty = {}
        self._backlog = list(self.blocks)

    @property
    def is_foreign(self) -> bool:
        return self.foreign_epoch is not None and self.foreign_epoch > self.spec.epoch

    @property
    def is_lost(self) -> bool:
        return self.stored is None and not self.is_foreign

    @property
    def is_behind(self) -> bool:
        if self.stored is None:
            return self.is_lost
        waits = self._backlog or self._dirty
        return not self.is_foreign and (bool(waits) or self.stored.record.spec != self.spec)

    def take(self) -> Batch:
        """The next batch, of what was there when Redis was begun anew, else in the order of recording."""
        assert self.stored is not None
        keys = self._backlog[-BATCH_ENTRIES:] or list(islice(self._dirty, BATCH_ENTRIES))
        del self._backlog[-BATCH_ENTRIES:]
        for key in keys:
            self._dirty.pop(key, None)
        return Batch(
            record=PoolRecord(spec=self.spec, batch=self.stored.record.batch + 1),
            present={key: self.blocks[key] for key in keys if key in self.blocks},
            absent=[key for key in keys if key not in self.blocks],
        )

    def take_leases(self) -> bytes | None:
        """The leases for Redis; None where they are unwatched, another service's, or as last taken."""
        if self.leases is None or self.is_foreign:
            return None
        record = leases_record(self.spec.epoch, self.leases())
        if record == self._told:
            return None
        self._told = record
        return leases_value(record)
