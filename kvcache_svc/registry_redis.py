"""The registry in Redis: a mirror in memory, written behind by one task (see records.py for keys and values).

Every write is a transaction that also reads the pool's record and counts its entries. If they are not what this process
left there (Redis lost data, was flushed, evicted a key, failed over, or somebody else wrote), the pool is written anew
from the mirror. So any batch may be lost, doubled or half known, and Redis still ends as the mirror; unless another
service opened the pool at a later epoch: the pool in Redis is that one's then.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from augury import limits
from augury.types import PoolSpec
from kvcache_svc.mirror import Batch, Mirror, Stored
from kvcache_svc.records import LeasesRecord, Names, PoolRecord, names, pool_value, read_leases, read_pool, sound
from kvcache_svc.registry import Leases, check_epoch, same_content

SCAN_ENTRIES = 5000
"""Entries read at a time, so that a large pool holds up neither Redis nor this process."""

GATHER_SECONDS = 0.01
"""How long entries gather before they are written."""

REWRITE_SECONDS = 5.0
"""Least pause between writing one pool anew and again: where Redis drops what it is given, there is no storm."""

LEASES_SECONDS = 1.0
"""How often leases are looked at."""

ANSWER_SECONDS = 2.0
LOAD_SECONDS = 10.0
CLOSE_SECONDS = 3.0
KEEP_SECONDS = 7 * 24 * 3600
"""Redis forgets a pool that was not written for so long: its worker went without a word."""

_FAILURES = (RedisError, OSError)
_log = logging.getLogger(__name__)


class RedisRegistry:
    """Registry over Redis. While Redis is away it works from the mirror, and catches up afterwards."""

    def __init__(self, url: str, key_prefix: str) -> None:
        """``url`` may be redis://, rediss:// or unix://; its query holds further options of redis-py, such as
        ``ssl_ca_certs``. Raises ValueError for another one.
        """
        self._redis: Redis = Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
        )
        self._prefix = key_prefix
        self._pools: dict[str, Mirror] = {}
        self._dropped: dict[str, Names] = {}
        self._caught_up = False
        self._closing = False
        self._leases_at = 0.0
        self._wake = asyncio.Event()
        self._writer = asyncio.get_running_loop().create_task(self._write_behind())

    @property
    def status(self) -> str:
        return "redis" if self._caught_up else "redis (degraded)"

    async def load(self, spec: PoolSpec) -> dict[bytes, int]:
        known = self._pools.get(spec.pool)
        if known is None and self._names(spec).pool not in self._dropped:
            found = await self._read(spec)
            known = self._pools.get(spec.pool, found)
        if known is None:
            return {}
        check_epoch(known.spec, spec)
        if not same_content(known.spec, spec):
            return {}
        self._pools[spec.pool] = known
        return dict(known.blocks)

    def record(self, spec: PoolSpec, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        self._pool(spec).record(sealed, gone)
        self._wake.set()

    def watch(self, spec: PoolSpec, leases: Leases) -> None:
        self._pool(spec).leases = leases

    def drop(self, pool: str) -> None:
        mirror = self._pools.pop(pool, None)
        if mirror is not None and not mirror.is_foreign:
            self._forget(mirror.spec)

    def rest(self, pool: str) -> None:
        self._pools.pop(pool, None)

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._writer], timeout=CLOSE_SECONDS)
        self._writer.cancel()
        await asyncio.wait([self._writer])
        await self._redis.aclose()

    def _pool(self, spec: PoolSpec) -> Mirror:
        pool = self._pools.get(spec.pool)
        if pool is None or not same_content(pool.spec, spec):
            if pool is not None and self._names(pool.spec) != self._names(spec):
                self._forget(pool.spec)
            pool = self._pools[spec.pool] = Mirror(spec, {}, None)
            self._dropped.pop(self._names(spec).pool, None)
        pool.spec = spec
        return pool

    def _forget(self, spec: PoolSpec) -> None:
        if len(self._dropped) < limits.MAX_REGISTRY_QUEUE:  # beyond it, Redis forgets the pool by itself
            dropped = self._names(spec)
            self._dropped[dropped.pool] = dropped
        self._wake.set()

    def _names(self, spec: PoolSpec) -> Names:
        return names(self._prefix, spec)

    # --- reading ---

    async def _read(self, spec: PoolSpec) -> Mirror | None:
        """What Redis holds of this pool, if it can be told. Anything unfit has to be written anew."""
        keys = self._names(spec)
        try:
            record, leases = await self._read_records(keys)
            if record is None:
                return None
            fields, is_whole = await self._read_entries(keys.registry)
        except _FAILURES as error:
            _log.warning("registry not readable", extra={"pool": spec.pool, "reason": str(error)})
            return None
        blocks = sound(fields, record.spec.num_blocks)
        is_sound = is_whole and len(blocks) == len(fields)
        num_leases = leases.num_leases if leases and leases.epoch == record.spec.epoch else 0
        _log.info("pool found", extra={"pool": spec.pool, "blocks": len(blocks), "leases": num_leases})
        return Mirror(record.spec, blocks, Stored(record=record, num_entries=len(fields)) if is_sound else None)

    async def _read_records(self, keys: Names) -> tuple[PoolRecord | None, LeasesRecord | None]:
        pipe = self._redis.pipeline(transaction=True)
        pipe.get(keys.pool)
        pipe.get(keys.leases)
        async with asyncio.timeout(ANSWER_SECONDS):
            pool, leases = await pipe.execute(raise_on_error=False)
        return read_pool(pool), read_leases(leases)

    async def _read_entries(self, key: str) -> tuple[dict[bytes, bytes], bool]:
        """The hash, and whether it was read to its end within the time."""
        fields: dict[bytes, bytes] = {}
        cursor, deadline = 0, asyncio.get_running_loop().time() + LOAD_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            cursor, some = await self._redis.hscan(key, cursor, count=SCAN_ENTRIES)
            fields.update(cast(dict[bytes, bytes], some))
            if cursor == 0:
                return fields, True
        return fields, False

    # --- writing ---

    async def _write_behind(self) -> None:
        first, longest = limits.CONNECT_RETRY_SECONDS
        pause, look = first, True
        while not self._closing or self._wake.is_set():
            self._wake.clear()
            try:
                await self._catch_up(look)
            except _FAILURES as error:
                self._lose(error)
                await asyncio.sleep(pause)
                pause, look = min(2 * pause, longest), True
                self._wake.set()
            else:
                pause = first
                look = not (self._closing or await self._gather())

    async def _gather(self) -> bool:
        """Wait for something to write and a little more, or not, when it is time to look after Redis."""
        try:
            async with asyncio.timeout(limits.HEARTBEAT_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            return False
        if not self._closing:
            await asyncio.sleep(GATHER_SECONDS)
        return True

    async def _catch_up(self, look: bool) -> None:
        """Write until Redis equals the mirror; with ``look``, check also pools of which nothing waits.

        Raises RedisError or OSError.
        """
        if look:
            await self._redis.ping()
        for name, dropped in list(self._dropped.items()):
            await self._redis.delete(*dropped.all)
            self._dropped.pop(name, None)
        pools = [pool for pool in self._pools.values() if self._is_due(pool, look)]
        while pools:
            for pool in pools:
                if not await self._write(pool):
                    self._lose_all()
            pools = [pool for pool in self._pools.values() if self._is_due(pool, look=False)]
        await self._write_leases()
        self._caught_up = not any(pool.is_lost for pool in self._pools.values())

    def _is_due(self, pool: Mirror, look: bool) -> bool:
        if pool.is_foreign or not (look or pool.is_behind):
            return False
        return pool.stored is not None or self._closing or pool.anew_from <= asyncio.get_running_loop().time()

    async def _write(self, pool: Mirror) -> bool:
        """One transaction with the next batch, if there is one. False if Redis was not as the last batch left it."""
        if pool.stored is None:
            await self._write_anew(pool)
            return True
        keys, stored = self._names(pool.spec), pool.stored
        pipe = self._redis.pipeline(transaction=True)
        pipe.hlen(keys.registry)
        batch = pool.take() if pool.is_behind else None
        if batch is None:
            pipe.get(keys.pool)
        else:
            _add(pipe, keys, batch)
        num_entries, record, *changes = await pipe.execute(raise_on_error=False)
        if num_entries != stored.num_entries or record != pool_value(stored.record) or _has_error(changes):
            self._yield_to(read_pool(record), pool)
            return False
        if batch is not None and pool.stored is not None:
            pool.stored = Stored(record=batch.record, num_entries=num_entries + _growth(batch, changes))
        return True

    async def _write_anew(self, pool: Mirror) -> None:
        """Wipe the pool in Redis and write its first batch, unless a later epoch of it is there. Raises RedisError."""
        keys = self._names(pool.spec)
        self._yield_to(await self._found(keys), pool)
        if pool.is_foreign:
            return
        pool.restart()
        pool.anew_from = asyncio.get_running_loop().time() + REWRITE_SECONDS
        pipe = self._redis.pipeline(transaction=True)
        pipe.delete(*keys.all)
        batch = pool.take()
        _add(pipe, keys, batch)
        _, _, *changes = await pipe.execute()
        if pool.stored is not None:
            pool.stored = Stored(record=batch.record, num_entries=_growth(batch, changes))

    def _yield_to(self, found: PoolRecord | None, pool: Mirror) -> None:
        """A later epoch in Redis: another service has the pool, and repairs what was written from here."""
        if found is not None and found.spec.epoch > pool.spec.epoch:
            pool.foreign_epoch = found.spec.epoch
            _log.warning("another service has the pool", extra={"pool": pool.spec.pool, "epoch": found.spec.epoch})

    async def _found(self, keys: Names) -> PoolRecord | None:
        pipe = self._redis.pipeline(transaction=False)
        pipe.get(keys.pool)
        (value,) = await pipe.execute(raise_on_error=False)
        return read_pool(value)

    async def _write_leases(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._leases_at:
            return
        self._leases_at = now + LEASES_SECONDS
        for pool in list(self._pools.values()):
            value = pool.take_leases()
            if value is not None:
                await self._redis.set(self._names(pool.spec).leases, value, ex=KEEP_SECONDS)

    def _lose(self, error: Exception) -> None:
        if self._caught_up:
            _log.warning("registry lost, going on without", extra={"reason": str(error)})
        self._caught_up = False
        self._lose_all()

    def _lose_all(self) -> None:
        """What lost one pool's writes lost perhaps every pool's, so all are written anew."""
        for pool in self._pools.values():
            pool.lose()


def _add(pipe: Pipeline, keys: Names, batch: Batch) -> None:
    """The commands of a batch; the first one's reply is the record that stood before."""
    pipe.set(keys.pool, pool_value(batch.record), ex=KEEP_SECONDS, get=True)
    if batch.present:
        pipe.hset(keys.registry, items=_flat(batch.present))
    if batch.absent:
        pipe.hdel(keys.registry, *batch.absent)
    pipe.expire(keys.registry, KEEP_SECONDS)


def _growth(batch: Batch, changes: Sequence[Any]) -> int:
    """Entries that Redis gained by a batch, after the replies to its commands but for the first."""
    *counts, _ = changes
    added = counts.pop(0) if batch.present else 0
    removed = counts.pop(0) if batch.absent else 0
    return int(added) - int(removed)


def _has_error(replies: Iterable[object]) -> bool:
    return any(isinstance(reply, RedisError) for reply in replies)


def _flat(fields: Mapping[bytes, int]) -> list[bytes | int]:
    return list(chain.from_iterable(fields.items()))
