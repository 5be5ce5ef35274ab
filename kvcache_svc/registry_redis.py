"""The registry in Redis: a mirror in memory, written behind by one task.

A pool has two Redis keys, in one cluster slot:

    {prefix}:v1:{<pool>}:meta      hash: incarnation, fingerprint, num_blocks, block_size, epoch, batch
    {prefix}:v1:{<pool>}:blocks    hash: block key (16 raw bytes) → block number in decimal

Every write is a transaction that also reads and counts up ``batch``. If it is not the number this process wrote last
(Redis lost data, was flushed, failed over, or somebody else wrote), the pool is written anew from the mirror. So any
batch may be lost, doubled or half known, and Redis still ends as the mirror.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from augury import limits
from augury.keys import KEY_BYTES
from augury.types import PoolSpec
from kvcache_svc.registry import same_content

BATCH_ENTRIES = 1000
"""Entries in one transaction: about a millisecond for either side."""

GATHER_SECONDS = 0.01
"""How long entries gather before they are written."""

ANSWER_SECONDS = 2.0
CLOSE_SECONDS = 3.0
KEEP_SECONDS = 7 * 24 * 3600
"""Redis forgets a pool that was not written for so long: its worker went without a word."""

_FAILURES = (RedisError, OSError)
_log = logging.getLogger(__name__)


class _Pool:
    """The mirror of one pool, and what Redis has yet to learn of it."""

    def __init__(self, spec: PoolSpec, blocks: dict[bytes, int], batch: int | None) -> None:
        self.spec = spec
        self.blocks = blocks
        self.batch = batch
        """Number of the last batch in Redis; None where Redis has to be written anew."""
        self._dirty: dict[bytes, None] = {}

    def record(self, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        for key in gone:
            self.blocks.pop(key, None)
        self.blocks.update(sealed)
        if self.batch is None:
            return
        for key in (*gone, *(key for key, _ in sealed)):
            self._dirty.pop(key, None)
            self._dirty[key] = None
        if len(self._dirty) - len(self.blocks) > limits.MAX_REGISTRY_QUEUE:
            self.lose()

    def lose(self) -> None:
        """What Redis holds of this pool is unknown, or too far behind to be worth a journal."""
        self.batch = None
        self._dirty.clear()

    def restart(self) -> None:
        """Redis holds nothing of this pool: everything is to be written."""
        self.batch = 0
        self._dirty = dict.fromkeys(self.blocks)

    @property
    def is_behind(self) -> bool:
        return self.batch is None or bool(self._dirty)

    def take(self) -> tuple[dict[bytes, int], list[bytes]]:
        """The next batch in the order of recording: entries to set, keys to delete."""
        keys = list(islice(self._dirty, BATCH_ENTRIES))
        for key in keys:
            del self._dirty[key]
        return {key: self.blocks[key] for key in keys if key in self.blocks}, [k for k in keys if k not in self.blocks]


class RedisRegistry:
    """Registry over Redis. While Redis is away it works from the mirror, and catches up afterwards."""

    def __init__(self, url: str, key_prefix: str) -> None:
        """``url`` may be redis://, rediss:// or unix://. Raises ValueError if it is none of them."""
        self._redis: Redis = Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
        )
        self._prefix = key_prefix
        self._pools: dict[str, _Pool] = {}
        self._dropped: set[str] = set()
        self._caught_up = False
        self._closing = False
        self._wake = asyncio.Event()
        self._writer = asyncio.get_running_loop().create_task(self._write_behind())

    @property
    def status(self) -> str:
        return "redis" if self._caught_up else "redis (degraded)"

    async def load(self, spec: PoolSpec) -> dict[bytes, int]:
        if spec.pool not in self._pools and spec.pool not in self._dropped:
            loaded = await self._read(spec)
            self._pools.setdefault(spec.pool, loaded)
        content = dict(self._pool(spec).blocks)
        self._wake.set()
        return content

    def record(self, spec: PoolSpec, sealed: Sequence[tuple[bytes, int]], gone: Sequence[bytes]) -> None:
        self._pool(spec).record(sealed, gone)
        self._wake.set()

    def drop(self, pool: str) -> None:
        self._pools.pop(pool, None)
        if len(self._dropped) < limits.MAX_REGISTRY_QUEUE:  # beyond it, Redis forgets the pool by itself
            self._dropped.add(pool)
        self._wake.set()

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._writer], timeout=CLOSE_SECONDS)
        self._writer.cancel()
        await asyncio.wait([self._writer])
        await self._redis.aclose()

    def _pool(self, spec: PoolSpec) -> _Pool:
        pool = self._pools.get(spec.pool)
        if pool is None or not same_content(pool.spec, spec):
            pool = self._pools[spec.pool] = _Pool(spec, {}, None)
            self._dropped.discard(spec.pool)
        pool.spec = spec
        return pool

    # --- reading ---

    async def _read(self, spec: PoolSpec) -> _Pool:
        """What Redis holds of this pool. Anything unfit makes it one that has to be written anew."""
        meta_key, blocks_key = self._keys(spec.pool)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hgetall(meta_key)
        pipe.hgetall(blocks_key)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                meta, fields = await pipe.execute(raise_on_error=False)
        except _FAILURES as error:
            _log.warning("registry not reachable", extra={"pool": spec.pool, "reason": str(error)})
            return _Pool(spec, {}, None)
        if not isinstance(meta, Mapping) or not isinstance(fields, Mapping):
            return _Pool(spec, {}, None)
        if any(meta.get(name) != value for name, value in _content_meta(spec).items()):
            return _Pool(spec, {}, None)
        blocks = _sound(fields, spec.num_blocks)
        batch = _number(meta.get(b"batch", b""))
        return _Pool(spec, blocks, batch if len(blocks) == len(fields) else None)

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
                self._caught_up, pause = True, first
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
        for name in list(self._dropped):
            await self._redis.delete(*self._keys(name))
            self._dropped.discard(name)
        pools = [pool for pool in self._pools.values() if look or pool.is_behind]
        while pools:
            for pool in pools:
                if not await self._write(pool):
                    self._lose_all()
            pools = [pool for pool in self._pools.values() if pool.is_behind]

    async def _write(self, pool: _Pool) -> bool:
        """One transaction with the next batch, if there is one. False if Redis was not as the last batch left it."""
        pipe = self._redis.pipeline(transaction=True)
        meta_key, blocks_key = self._keys(pool.spec.pool)
        anew = pool.batch is None
        if anew:
            pool.restart()
            pipe.delete(meta_key, blocks_key)
        else:
            pipe.hget(meta_key, "batch")
        before = pool.batch
        assert before is not None
        if anew or pool.is_behind:
            self._add_batch(pipe, pool, before + 1)
        replies = await pipe.execute(raise_on_error=False)
        errors = [reply for reply in replies if isinstance(reply, RedisError)]
        if anew and errors:
            raise errors[0]
        if errors or not (anew or replies[0] == b"%d" % before):
            return False
        if len(replies) > 1 and pool.batch is not None:
            pool.batch = before + 1
        return True

    def _add_batch(self, pipe: Pipeline, pool: _Pool, batch: int) -> None:
        meta_key, blocks_key = self._keys(pool.spec.pool)
        present, absent = pool.take()
        meta = {**_content_meta(pool.spec), b"epoch": b"%d" % pool.spec.epoch, b"batch": b"%d" % batch}
        pipe.hset(meta_key, items=_flat(meta))
        if present:
            pipe.hset(blocks_key, items=_flat(present))
        if absent:
            pipe.hdel(blocks_key, *absent)
        for key in (meta_key, blocks_key):
            pipe.expire(key, KEEP_SECONDS)

    def _lose(self, error: Exception) -> None:
        if self._caught_up:
            _log.warning("registry lost, going on without", extra={"reason": str(error)})
        self._caught_up = False
        self._lose_all()

    def _lose_all(self) -> None:
        """What lost one pool's writes lost perhaps every pool's, so all are written anew."""
        for pool in self._pools.values():
            pool.lose()

    def _keys(self, pool: str) -> tuple[str, str]:
        base = f"{self._prefix}:v1:{{{pool}}}"
        return f"{base}:meta", f"{base}:blocks"


def _content_meta(spec: PoolSpec) -> dict[bytes, bytes]:
    """What has to be equal for the blocks to mean the same."""
    return {
        b"incarnation": spec.incarnation.encode(),
        b"fingerprint": spec.fingerprint.encode(),
        b"num_blocks": b"%d" % spec.num_blocks,
        b"block_size": b"%d" % spec.block_size,
    }


def _flat(fields: Mapping[bytes, bytes | int]) -> list[bytes | int]:
    return list(chain.from_iterable(fields.items()))


def _sound(fields: Mapping[bytes, bytes], num_blocks: int) -> dict[bytes, int]:
    """The entries that can be true: whole keys, blocks of the pool, and no block under two keys."""
    numbers = {key: _number(value) for key, value in fields.items() if len(key) == KEY_BYTES}
    holders = Counter(numbers.values())
    return {
        key: block
        for key, block in numbers.items()
        if block is not None and 0 < block < num_blocks and holders[block] == 1
    }


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) < 19 else None
