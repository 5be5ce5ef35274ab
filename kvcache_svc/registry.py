"""Where the KV service writes which keys its pools hold, so that a restarted one finds the prefixes again.

A registry proposes, it does not prove: workers keep each block's key beside the block and refuse a wrong hit, so
an entry that is stale or missing costs time only.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from augury.types import PoolSpec


class Registry(Protocol):
    """What a pool's blocks hold, as (key, block). Content belongs to a spec but for its epoch."""

    async def load(self, spec: PoolSpec) -> dict[bytes, int]:
        """Open a pool: its known content, at most one key a block.

        Empty where none is known of this incarnation, fingerprint and geometry, or the registry cannot be reached.
        Content of another incarnation, fingerprint or geometry is forgotten.
        """
        ...

    def record(self, spec: PoolSpec, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        """The ``gone`` keys are no longer found in the pool, the ``sealed`` ones are. Never waits, never fails."""
        ...

    def drop(self, pool: str) -> None:
        """The pool is closed: forget it. Never waits, never fails."""
        ...

    @property
    def status(self) -> str:
        """``memory``, ``redis``, or ``redis (degraded)`` while writes wait for it."""
        ...

    async def close(self) -> None:
        """Write what still waits, for a bounded time, and let go of connections."""
        ...


def open_registry(url: str | None, key_prefix: str) -> Registry:
    """The registry at a Redis ``url``, else in memory. Must be called inside the event loop.

    Raises ValueError for a bad url.
    """
    if url is None:
        return MemoryRegistry()
    from kvcache_svc.registry_redis import RedisRegistry  # redis is an optional dependency

    return RedisRegistry(url, key_prefix)


def same_content(ours: PoolSpec, theirs: PoolSpec) -> bool:
    """Whether blocks of one spec mean the same under the other: all but the epoch is equal."""
    return replace(ours, epoch=theirs.epoch) == theirs


class MemoryRegistry:
    """Lives and dies with the process: for embedded use, where the KV service does too."""

    status = "memory"

    def __init__(self) -> None:
        self._pools: dict[str, tuple[PoolSpec, dict[bytes, int]]] = {}

    async def load(self, spec: PoolSpec) -> dict[bytes, int]:
        return dict(self._content(spec))

    def record(self, spec: PoolSpec, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        content = self._content(spec)
        for key in gone:
            content.pop(key, None)
        content.update(sealed)

    def drop(self, pool: str) -> None:
        self._pools.pop(pool, None)

    async def close(self) -> None:
        self._pools.clear()

    def _content(self, spec: PoolSpec) -> dict[bytes, int]:
        known = self._pools.get(spec.pool)
        content = known[1] if known is not None and same_content(known[0], spec) else {}
        self._pools[spec.pool] = (spec, content)
        return content
