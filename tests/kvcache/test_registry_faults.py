"""Whatever Redis does or loses, the registry goes on from memory, and Redis ends as the memory."""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from augury import limits
from augury.errors import FencedError
from kvcache_svc import mirror, registry_redis
from kvcache_svc.records import PoolRecord, pool_value
from kvcache_svc.registry import MemoryRegistry
from tests.kvcache.cutting_proxy import CuttingProxy
from tests.kvcache.registries import (
    SPEC,
    entries,
    key,
    names_of,
    opened,
    stored,
    stored_pool,
    until,
    until_recorded,
    until_stored,
)
from tests.redis_server import RedisServer

NAMES = names_of()
Harm = Callable[[Redis], Awaitable[Any]]


@pytest.fixture(autouse=True)
def rewriting_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_redis, "REWRITE_SECONDS", 0.05)


# --- a server that comes and goes ---


async def test_redis_that_is_away_at_first_catches_up() -> None:
    with RedisServer() as server:
        server.kill()
        async with opened(server.url) as registry:
            assert await registry.load(SPEC) == {}
            registry.record(SPEC, list(entries(1, 2).items()), [])
            registry.record(SPEC, [], [key(1)])
            assert registry.status == "redis (degraded)"
            assert await registry.load(SPEC) == entries(2)
            server.start()
            await until(lambda: registry.status == "redis")
            await until_stored(server.url, entries(2))


async def test_redis_killed_and_restarted_under_load_ends_with_everything() -> None:
    rng = random.Random(7)
    expected: dict[bytes, int] = {}
    with RedisServer() as server:
        async with opened(server.url) as registry:
            await registry.load(SPEC)
            for round_number in range(300):
                sealed = [(key(rng.randrange(1, 2000)), rng.randrange(1, 5000)) for _ in range(20)]
                gone = [key(rng.randrange(2000)) for _ in range(10)]
                for lost in gone:
                    expected.pop(lost, None)
                expected.update(sealed)
                registry.record(SPEC, sealed, gone)
                if round_number in (100, 200):
                    await until(lambda: registry.status == "redis")
                    await asyncio.to_thread(server.kill if round_number == 100 else server.restart)
                if round_number == 150:
                    await until(lambda: registry.status == "redis (degraded)")
                    await asyncio.to_thread(server.start)
                await asyncio.sleep(0.003)
            await until(lambda: registry.status == "redis")
        assert await stored(server.url) == expected


async def test_requests_and_answers_lost_on_the_way_leave_redis_equal_to_the_mirror(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECT_RETRY_SECONDS", (0.001, 0.01))
    monkeypatch.setattr(registry_redis, "REWRITE_SECONDS", 0.0)
    monkeypatch.setattr(mirror, "BATCH_ENTRIES", 5)
    rng = random.Random(3)
    memory = MemoryRegistry()
    async with CuttingProxy(server.port, seed=1) as proxy, opened(proxy.url) as registry:
        for round_number in range(1, 16):
            proxy.cut = 0.1
            while proxy.num_cuts < 2 * round_number:
                sealed = [(key(rng.randrange(3000)), rng.randrange(1, 5000)) for _ in range(6)]
                gone = [key(rng.randrange(3000)) for _ in range(3)]
                for each in (memory, registry):
                    each.record(SPEC, sealed, gone)
                await asyncio.sleep(0.002)
            proxy.cut = 0.0
            await until_stored(server.url, await memory.load(SPEC))
            await until(lambda: registry.status == "redis")


async def test_a_redis_that_hangs_blocks_neither_load_nor_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_redis, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(registry_redis, "CLOSE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(10), opened(f"redis://127.0.0.1:{silent.getsockname()[1]}") as registry:
            assert await registry.load(SPEC) == {}
            registry.record(SPEC, list(entries(1).items()), [])
            assert await registry.load(SPEC) == entries(1)
            assert registry.status == "redis (degraded)"


async def test_a_redis_that_stops_for_a_while_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_redis, "ANSWER_SECONDS", 0.3)
    with RedisServer() as server:
        async with opened(server.url) as registry:
            registry.record(SPEC, list(entries(1).items()), [])
            await until_stored(server.url, entries(1))
            server.pause()
            registry.record(SPEC, list(entries(2).items()), [])
            await until(lambda: registry.status == "redis (degraded)")
            assert await registry.load(SPEC) == entries(1, 2)
            registry.record(SPEC, list(entries(3).items()), [key(1)])
            server.resume()
            await until(lambda: registry.status == "redis")
            await until_stored(server.url, entries(2, 3))


async def test_a_journal_beyond_its_limit_is_replaced_by_the_whole_pool(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REGISTRY_QUEUE", 50)
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(*range(1, 500)).items()), [])
        await until_stored(server.url, entries(*range(1, 500)))

        await redis.client_pause(500)  # a slow server: milliseconds
        registry.record(SPEC, list(entries(500).items()), [])
        await asyncio.sleep(0.1)  # this batch is on its way when the journal grows too long
        registry.record(SPEC, list(entries(*range(501, 600)).items()), [key(n) for n in range(1, 400)])
        registry.record(SPEC, [], [key(n) for n in range(550, 600)])
        pool = registry._pools[SPEC.pool]  # type: ignore[attr-defined]
        assert pool.stored is None and not pool._dirty
        await until_stored(server.url, entries(*range(400, 550)))


# --- a server that loses or bends what it holds ---


async def overwrite_epoch(redis: Redis, epoch: int) -> None:
    """As somebody would who knows the format but not the checksum."""
    value = await redis.get(NAMES.pool)
    assert isinstance(value, bytes)
    await redis.set(NAMES.pool, value.replace(b'"epoch":1', b'"epoch":%d' % epoch))


HARMS: dict[str, Harm] = {
    "flushed": lambda redis: redis.flushall(),
    "pool evicted": lambda redis: redis.delete(NAMES.pool),
    "registry evicted": lambda redis: redis.delete(NAMES.registry),
    "all evicted": lambda redis: redis.delete(*NAMES.all),
    "pool of another type": lambda redis: _retype(redis, NAMES.pool),
    "registry of another type": lambda redis: _retype(redis, NAMES.registry),
    "leases of another type": lambda redis: _retype(redis, NAMES.leases),
    "pool is garbage": lambda redis: redis.set(NAMES.pool, b"\xff\x00" * 40),
    "pool is older": lambda redis: redis.set(NAMES.pool, pool_value(PoolRecord(spec=SPEC, batch=1))),
    "epoch is bent": lambda redis: overwrite_epoch(redis, 10**15),
    "foreign entry": lambda redis: redis.hset(NAMES.registry, key(77), 77),
    "foreign fields": lambda redis: redis.hset(NAMES.registry, mapping={"a": "b", "": "", "c" * 500: "\x00"}),
    "entry lost": lambda redis: redis.hdel(NAMES.registry, key(2)),
}


async def _retype(redis: Redis, name: str) -> None:
    await redis.delete(name)
    await redis.rpush(name, "of", "another", "type")


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
async def test_what_redis_lost_or_got_from_elsewhere_is_put_right(
    server: RedisServer, redis: Redis, harm: Harm, busy: bool
) -> None:
    other = replace(SPEC, pool="worker-1")
    async with opened(server.url) as registry:
        for spec in (SPEC, other):
            registry.record(spec, list(entries(1, 2).items()), [])
        await until_stored(server.url, entries(1, 2))
        registry.record(SPEC, list(entries(3).items()), [])
        await until_stored(server.url, entries(1, 2, 3))
        await harm(redis)
        if busy:
            registry.record(SPEC, list(entries(4).items()), [])
        await until_stored(server.url, entries(1, 2, 3, 4) if busy else entries(1, 2, 3))
        await until_stored(server.url, entries(1, 2), other)
        await until_recorded(server.url, SPEC)
        await until(lambda: registry.status == "redis")


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
async def test_a_restarted_service_believes_only_what_can_be_true(
    server: RedisServer, redis: Redis, harm: Harm
) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1, 2, 3).items()), [])
    await harm(redis)
    async with opened(server.url) as registry:
        content = await registry.load(SPEC)
        assert content.items() <= (entries(1, 2, 3) | entries(77)).items()
        registry.record(SPEC, list(entries(4).items()), [])
        await until_stored(server.url, {**content, **entries(4)})


async def test_entries_that_cannot_be_true_are_not_loaded_and_go_away(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1, 2, 3).items()), [])
    garbage: dict[Any, Any] = {
        b"short": 4,
        key(5): "five",
        key(6): 0,
        key(7): SPEC.num_blocks,
        key(8): 3,
        key(9): "9" * 5000,
        key(10): -10,
    }
    await redis.hset(NAMES.registry, mapping=garbage)
    async with opened(server.url) as registry:
        assert await registry.load(SPEC) == entries(1, 2)
        registry.record(SPEC, [], [])
    assert await stored(server.url) == entries(1, 2)


async def test_a_bent_epoch_fences_nobody_and_a_true_one_does(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, [], [])
    await overwrite_epoch(redis, 10**15)
    async with opened(server.url) as registry:
        assert await registry.load(SPEC) == {}
    record = PoolRecord(spec=replace(SPEC, epoch=10**15), batch=1)
    await redis.set(NAMES.pool, pool_value(record))
    async with opened(server.url) as registry:
        with pytest.raises(FencedError):
            await registry.load(SPEC)
    assert await stored_pool(server.url) == record


async def test_a_record_of_another_shape_counts_as_none(server: RedisServer, redis: Redis) -> None:
    """Right checksum, wrong content: as another version of this program might leave it."""
    spec = msgspec.to_builtins(SPEC)
    bent = [{}, {"spec": spec}, {"spec": {**spec, "groups": [{"block_size": 0}]}, "batch": 1}, {"spec": 3, "batch": 1}]
    for each in bent:
        body = msgspec.json.encode(each)
        await redis.set(NAMES.pool, pool_value(PoolRecord(spec=SPEC, batch=1))[:17] + body)
        async with opened(server.url) as registry:
            assert await registry.load(SPEC) == {}


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
async def test_a_full_redis_degrades_and_is_filled_again_once_there_is_room(policy: str) -> None:
    content = entries(*range(1, 5000))
    with RedisServer("--maxmemory-policy", policy) as server:
        async with Redis.from_url(server.url) as admin, opened(server.url) as registry:
            registry.record(SPEC, list(content.items())[:2500], [])
            await until(lambda: registry.status == "redis")
            await admin.config_set("maxmemory", "1mb")
            registry.record(SPEC, list(content.items())[2500:], [])
            await until(lambda: registry.status == "redis (degraded)")
            assert await registry.load(SPEC) == content
            await admin.config_set("maxmemory", 0)
            await until_stored(server.url, content)
            await until(lambda: registry.status == "redis")


async def test_a_redis_that_drops_what_it_is_given_is_not_stormed(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_redis, "REWRITE_SECONDS", 1.0)
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1).items()), [])
        await until_stored(server.url, entries(1))
        await redis.config_resetstat()
        for number in range(2, 100):
            registry.record(SPEC, list(entries(number).items()), [])
            with suppress(RedisError):
                await redis.flushall()
            await asyncio.sleep(0.02)
        counts = await redis.info("commandstats")
        assert counts["cmdstat_del"]["calls"] <= 4, "one rewrite a second"
        assert registry.status == "redis (degraded)"
        await until_stored(server.url, entries(*range(1, 100)))
