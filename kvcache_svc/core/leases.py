"""Leases: who holds which blocks under the current epoch, and the answer last given."""

from augury.errors import FencedError
from augury.types import Grant

Tables = list[list[int]]
"""The block table of each group of one lease."""


class Leases:
    """Block tables by lease, and the sequence of messages, numbered from 1 within an epoch.

    A message repeated under its (epoch, seq) is answered again, any other than the next refused.
    """

    def __init__(self, epoch: int, tables: dict[int, Tables] | None = None) -> None:
        self.epoch = epoch
        self.tables = tables or {}
        self._last: Grant | None = None

    def replay(self, epoch: int, seq: int) -> Grant | None:
        """The stored grant if this message was answered before, None if it is the next one; FencedError otherwise."""
        if epoch != self.epoch:
            raise FencedError(f"epoch {epoch}, but the pool is at {self.epoch}")
        if self._last is not None and seq == self._last.seq:
            return self._last
        last = self._last.seq if self._last else 0
        if seq != last + 1:
            raise FencedError(f"message {seq} after {last}")
        return None

    def answered(self, grant: Grant) -> None:
        self._last = grant

    def fence(self, epoch: int) -> list[Tables]:
        """Begin a later epoch without leases; the tables given up are returned. FencedError if it is not later."""
        if epoch <= self.epoch:
            raise FencedError(f"epoch {epoch} is not later than {self.epoch}")
        tables = list(self.tables.values())
        self.epoch, self.tables, self._last = epoch, {}, None
        return tables
