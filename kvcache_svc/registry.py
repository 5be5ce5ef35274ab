"""Where the KV service writes which keys its pools hold, so that a restarted one finds the prefixes again.

A registry proposes, it does not prove: workers keep each block's key beside the block and refuse a wrong hit, so
an entry that is stale or missing costs time only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from augury.errors import FencedError
from augury.types import PoolSpec

Leases = Callable[[], Mapping[int, int]]
"""Real blocks that each lease of a pool holds at the time of the call."""


class Registry(Protocol):
    """What a pool's blocks hold, as (key, block). Content belongs to a spec but for its epoch."""

    async def load(self, spec: PoolSpec) -> dict[bytes, int]:
        """The known content of a pool that is to be opened, at most one key a block; ``record`` then opens it.

        Empty where none is known of this incarnation, fingerprint and geometry, or the registry cannot be reached.
        Raises FencedError where the pool is known to have been opened at a later epoch.
        """
        ...

    def record(self, spec: PoolSpec, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        """The ``gone`` keys are no longer found in the pool, the ``sealed`` ones are. Never waits, never fails.

        Content of another incarnation, fingerprint or geometry is forgotten.
        """
        ...

    def watch(self, spec: PoolSpec, leases: Leases) -> None:
        """Take note of the pool's leases now and then. Never waits, never fails."""
        ...

    def drop(self, pool: str) -> None:
        """The pool is closed: forget it. Never waits, never fails."""
        ...

    def rest(self, pool: str) -> None:
        """Nobody has used the pool for long: keep no more of it than another process would find."""
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


def check_epoch(known: PoolSpec, spec: PoolSpec) -> None:
    """Raises FencedError unless ``spec`` is what is known, or opens the pool anew at a later epoch."""
    if spec.epoch < known.epoch or (spec.epoch == known.epoch and spec != known):
        raise FencedError(f"epoch {spec.epoch} is not later than {known.epoch}")


def reconcile(registered: Mapping[bytes, int], tags: Sequence[tuple[int, bytes]]) -> dict[bytes, int]:
    """The content of a pool by what the registry and the worker say: ``tags`` are blocks and the keys they carry.

    The worker is right, and where it says anything it says all; the registry then only tells which of several blocks
    with one key is found, else the first.
    """
    if not tags:
        return dict(registered)
    content = {key: block for block, key in tags if registered.get(key) == block}
    for block, key in tags:
        content.setdefault(key, block)
    return content


class MemoryRegistry:
    """Lives and dies with the process: for embedded use, where the KV service does too."""

    status = "memory"

    def __init__(self) -> None:
        self._pools: dict[str, tuple[PoolSpec, dict[bytes, int]]] = {}

    async def load(self, spec: PoolSpec) -> dict[bytes, int]:
        known = self._pools.get(spec.pool)
        if known is None:
            return {}
        check_epoch(known[0], spec)
        return dict(known[1]) if same_content(known[0], spec) else {}

    def record(self, spec: PoolSpec, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        known = self._pools.get(spec.pool)
        content = known[1] if known and (known[0] is spec or same_content(known[0], spec)) else {}
        self._pools[spec.pool] = (spec, content)
        for key in gone:
            content.pop(key, None)
        content.update(sealed)

    def watch(self, spec: PoolSpec, leases: Leases) -> None:
        """Nobody could ask for them: they end with the process."""

    def drop(self, pool: str) -> None:
        self._pools.pop(pool, None)

    def rest(self, pool: str) -> None:
        self.drop(pool)

    async def close(self) -> None:
        self._pools.clear()
