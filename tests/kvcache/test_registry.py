"""Both registries keep what they are told; the one in Redis ends equal to it whatever happens to the server."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from augury import limits
from augury.keys import KEY_BYTES
from augury.types import PoolSpec
from kvcache_svc import registry_redis
from kvcache_svc.registry import MemoryRegistry, Registry, open_registry
from tests.kvcache.cutting_proxy import CuttingProxy
from tests.redis_server import RedisServer

SPEC = PoolSpec(pool="worker-0", incarnation="life-1", fingerprint="model", epoch=1, num_blocks=5000, block_size=16)
OTHERS = [
    replace(SPEC, incarnation="life-2"),
    replace(SPEC, fingerprint="other"),
    replace(SPEC, num_blocks=4999),
    replace(SPEC, block_size=32),
    replace(SPEC, pool="worker-1"),
]


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def entries(*numbers: int) -> dict[bytes, int]:
    return {key(number): number for number in numbers}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    """A client of its own, to an empty database."""
    async with Redis.from_url(server.url) as client:
        await client.flushall()
        yield client


@asynccontextmanager
async def opened(url: str | None, prefix: str = "augury") -> AsyncIterator[Registry]:
    registry = open_registry(url, prefix)
    try:
        yield registry
    finally:
        await registry.close()


@pytest.fixture(params=["memory", "redis"])
async def registry(request: pytest.FixtureRequest, server: RedisServer, redis: Redis) -> AsyncIterator[Registry]:
    async with opened(server.url if request.param == "redis" else None) as made:
        yield made


async def found_by_the_next(url: str, spec: PoolSpec = SPEC, prefix: str = "augury") -> dict[bytes, int]:
    """What a KV service that starts afresh finds. It owns the pool from then on."""
    async with opened(url, prefix) as fresh:
        return await fresh.load(spec)


async def stored(url: str, spec: PoolSpec = SPEC) -> dict[bytes, int]:
    """What Redis holds, seen without touching it."""
    async with Redis.from_url(url) as client:
        fields: dict[Any, Any] = await client.hgetall(f"augury:v1:{{{spec.pool}}}:blocks")
        return {field: int(value) for field, value in fields.items()}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_stored(url: str, expected: dict[bytes, int], spec: PoolSpec = SPEC) -> None:
    found: dict[bytes, int] | None = None
    for _ in range(400):
        with suppress(ResponseError):  # a foreign value of another type
            found = await stored(url, spec)
        if found == expected:
            return
        await asyncio.sleep(0.05)
    assert found == expected


# --- both ---


async def test_an_unknown_pool_is_empty(registry: Registry) -> None:
    assert await registry.load(SPEC) == {}


async def test_what_was_recorded_is_loaded_whatever_the_epoch(registry: Registry) -> None:
    await registry.load(SPEC)
    registry.record(SPEC, list(entries(1, 2, 3).items()), [])
    registry.record(SPEC, list(entries(4).items()), [key(2)])
    assert await registry.load(replace(SPEC, epoch=9)) == entries(1, 3, 4)


@pytest.mark.parametrize("other", OTHERS, ids=lambda spec: str(spec.pool + spec.incarnation + spec.fingerprint))
async def test_content_of_another_pool_life_model_or_geometry_is_not_loaded(
    registry: Registry, other: PoolSpec
) -> None:
    registry.record(SPEC, list(entries(1).items()), [])
    assert await registry.load(other) == {}
    assert await registry.load(SPEC) == (entries(1) if other.pool != SPEC.pool else {})


async def test_a_dropped_pool_is_empty(registry: Registry) -> None:
    registry.record(SPEC, list(entries(1).items()), [])
    registry.drop(SPEC.pool)
    assert await registry.load(SPEC) == {}


async def test_the_loaded_mapping_is_the_callers_own(registry: Registry) -> None:
    registry.record(SPEC, list(entries(1).items()), [])
    (await registry.load(SPEC)).clear()
    assert await registry.load(SPEC) == entries(1)


changes = st.lists(
    st.tuples(
        st.dictionaries(st.integers(1, 30), st.integers(1, 40), max_size=8),
        st.lists(st.integers(1, 30), max_size=8),
        st.sampled_from([0.0, 0.0, 0.02]),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=changes, batch=st.integers(1, 7))
def test_redis_ends_as_memory_does(
    server: RedisServer, changes: list[Any], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_redis, "BATCH_ENTRIES", batch)
    monkeypatch.setattr(registry_redis, "GATHER_SECONDS", 0.0)

    async def scenario() -> None:
        memory = MemoryRegistry()
        async with Redis.from_url(server.url) as client:
            await client.flushall()
        async with opened(server.url) as registry:
            for each in (memory, registry):
                await each.load(SPEC)
            for sealed, gone, pause in changes:
                for each in (memory, registry):
                    each.record(SPEC, [(key(k), block) for k, block in sealed.items()], [key(k) for k in gone])
                await asyncio.sleep(pause)
        expected = await memory.load(SPEC)
        assert await stored(server.url) == expected

    asyncio.run(scenario())


# --- redis ---


async def test_a_new_process_finds_what_the_last_one_recorded(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as first:
        first.record(SPEC, list(entries(*range(1, 3000)).items()), [])
        first.record(SPEC, [], [key(number) for number in range(1, 1000)])
    async with opened(server.url) as second:
        assert await second.load(replace(SPEC, epoch=2)) == entries(*range(1000, 3000))
        second.record(SPEC, list(entries(1).items()), [key(1000)])
    assert await found_by_the_next(server.url) == entries(1, *range(1001, 3000))


async def test_another_life_wipes_what_the_last_one_stored(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as first:
        first.record(SPEC, list(entries(1).items()), [])
    assert await found_by_the_next(server.url, replace(SPEC, incarnation="life-2")) == {}
    assert await stored(server.url) == {}


async def test_a_dropped_pool_leaves_nothing_behind(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1).items()), [])
    assert await redis.keys() != []
    async with opened(server.url) as registry:
        registry.drop(SPEC.pool)
        assert await registry.load(SPEC) == {}
        registry.drop(SPEC.pool)
    assert await redis.keys() == []


async def test_two_prefixes_do_not_see_each_other_and_foreign_keys_stay(server: RedisServer, redis: Redis) -> None:
    await redis.set("foreign", "untouched")
    await redis.hset("augury:v2:{worker-0}:blocks", "field", "value")
    async with opened(server.url, "a") as a, opened(server.url, "b") as b:
        a.record(SPEC, list(entries(1).items()), [])
        b.record(SPEC, list(entries(2).items()), [])
        b.drop("worker-1")
    assert await found_by_the_next(server.url, prefix="a") == entries(1)
    assert await found_by_the_next(server.url, prefix="b") == entries(2)
    async with opened(server.url, "a") as a:
        a.drop(SPEC.pool)
    assert await redis.get("foreign") == b"untouched"
    assert sorted(await redis.keys()) == [
        b"augury:v2:{worker-0}:blocks",
        b"b:v1:{worker-0}:blocks",
        b"b:v1:{worker-0}:meta",
        b"foreign",
    ]


async def test_every_key_names_its_prefix_and_expires(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url, "mine") as registry:
        registry.record(SPEC, list(entries(1).items()), [])
    names: list[Any] = await redis.keys()
    assert len(names) == 2
    assert all(name.startswith(b"mine:v1:{worker-0}:") for name in names)
    assert all([0 < await redis.ttl(name) <= registry_redis.KEEP_SECONDS for name in names])


@pytest.mark.parametrize("part", ["meta", "blocks"])
async def test_a_key_of_the_wrong_type_counts_as_absent_and_is_overwritten(
    server: RedisServer, redis: Redis, part: str
) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1, 2).items()), [])
    await redis.delete(name := f"augury:v1:{{worker-0}}:{part}")
    await redis.set(name, "not a hash")
    async with opened(server.url) as registry:
        assert await registry.load(SPEC) == {}
        registry.record(SPEC, list(entries(3).items()), [])
        await until(lambda: registry.status == "redis")
        await until_stored(server.url, entries(3))

        await redis.delete(name)
        await redis.set(name, "again not a hash")
        registry.record(SPEC, list(entries(4).items()), [])
        await until_stored(server.url, entries(3, 4))


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
    await redis.hset("augury:v1:{worker-0}:blocks", mapping=garbage)
    async with opened(server.url) as registry:
        assert await registry.load(SPEC) == entries(1, 2)
    assert await stored(server.url) == entries(1, 2)


async def test_a_password_is_needed_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_redis, "CLOSE_SECONDS", 0.3)
    with RedisServer(password="s3cr@t") as server:
        url = server.url.replace("s3cr@t", "s3cr%40t")
        async with opened(url) as registry:
            await until(lambda: registry.status == "redis")
            registry.record(SPEC, list(entries(1).items()), [])
        assert await stored(url) == entries(1)
        async with opened(url.replace("s3cr", "wrong")) as registry:
            assert await registry.load(SPEC) == {}
            await asyncio.sleep(0.2)
            assert registry.status == "redis (degraded)"


def test_a_url_of_another_scheme_is_refused() -> None:
    async def attempt() -> None:
        open_registry("http://127.0.0.1", "augury")

    with pytest.raises(ValueError, match="redis://"):
        asyncio.run(attempt())


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
    monkeypatch.setattr(registry_redis, "BATCH_ENTRIES", 5)
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


async def test_what_an_idle_redis_lost_comes_back_unasked(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as registry:
        for spec in (SPEC, OTHERS[-1]):
            registry.record(spec, list(entries(1, 2).items()), [])
        await until_stored(server.url, entries(1, 2))
        await redis.flushall()
        for spec in (SPEC, OTHERS[-1]):
            await until_stored(server.url, entries(1, 2), spec)


async def test_a_redis_that_hangs_blocks_neither_load_nor_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_redis, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(registry_redis, "CLOSE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(10), opened(f"redis://127.0.0.1:{silent.getsockname()[1]}") as registry:
            assert await registry.load(SPEC) == {}
            registry.record(SPEC, list(entries(1).items()), [])
            assert await registry.load(SPEC) == entries(1)
            assert registry.status == "redis (degraded)"


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
        assert pool.batch is None and not pool._dirty
        await until_stored(server.url, entries(*range(400, 550)))
