"""Both registries keep what they are told, and refuse a scheduler that was replaced."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from augury.errors import FencedError
from augury.geometry import KvGroup
from augury.types import PoolSpec
from kvcache_svc import mirror, registry_redis
from kvcache_svc.registry import MemoryRegistry, Registry, reconcile
from tests.kvcache.registries import (
    SPEC,
    entries,
    found_by_the_next,
    key,
    names_of,
    opened,
    stored,
    stored_leases,
    stored_pool,
    until,
    until_recorded,
    until_stored,
)
from tests.redis_server import RedisServer

LATER = replace(SPEC, epoch=2)
OTHERS = {
    "life": replace(LATER, incarnation="life-2"),
    "model": replace(LATER, fingerprint="other"),
    "size": replace(LATER, num_blocks=4999),
    "geometry": replace(LATER, groups=(KvGroup(block_size=32),)),
    "window": replace(LATER, groups=(SPEC.groups[0], replace(SPEC.groups[1], window=63))),
    "pool": replace(SPEC, pool="worker-1"),
}


@pytest.fixture(params=["memory", "redis"])
async def registry(request: pytest.FixtureRequest, server: RedisServer, redis: Redis) -> AsyncIterator[Registry]:
    async with opened(server.url if request.param == "redis" else None) as made:
        yield made


# --- both ---


async def test_an_unknown_pool_is_empty(registry: Registry) -> None:
    assert await registry.load(SPEC) == {}


async def test_what_was_recorded_is_loaded_at_a_later_epoch(registry: Registry) -> None:
    await registry.load(SPEC)
    registry.record(SPEC, list(entries(1, 2, 3).items()), [])
    registry.record(SPEC, list(entries(4).items()), [key(2)])
    assert await registry.load(replace(SPEC, epoch=9)) == entries(1, 3, 4)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
async def test_content_of_another_pool_life_model_or_geometry_is_not_loaded(
    registry: Registry, other: PoolSpec
) -> None:
    registry.record(SPEC, list(entries(1).items()), [])
    assert await registry.load(other) == {}
    registry.record(other, [], [])
    assert await registry.load(replace(SPEC, epoch=3)) == (entries(1) if other.pool != SPEC.pool else {})


async def test_an_earlier_epoch_is_fenced_and_costs_nothing(registry: Registry) -> None:
    registry.record(LATER, list(entries(1).items()), [])
    for stale in (SPEC, replace(SPEC, incarnation="life-2"), replace(LATER, incarnation="life-2")):
        with pytest.raises(FencedError):
            await registry.load(stale)
    assert await registry.load(LATER) == entries(1)


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
    monkeypatch.setattr(mirror, "BATCH_ENTRIES", batch)
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


async def test_a_pool_at_rest_is_kept_in_redis_alone(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1).items()), [])
        await until_stored(server.url, entries(1))
        registry.rest(SPEC.pool)
        assert await registry.load(SPEC) == entries(1)
        registry.rest(SPEC.pool)
        await redis.flushall()
        assert await registry.load(SPEC) == {}


async def test_a_pool_at_rest_is_not_kept_in_memory() -> None:
    registry = MemoryRegistry()
    registry.record(SPEC, list(entries(1).items()), [])
    registry.rest(SPEC.pool)
    assert await registry.load(SPEC) == {}


# --- the worker's tags ---


@given(
    registered=st.dictionaries(st.integers(1, 12), st.integers(1, 12), max_size=8),
    tags=st.dictionaries(st.integers(1, 12), st.integers(1, 12), max_size=8),
)
def test_tags_overrule_the_registry(registered: dict[int, int], tags: dict[int, int]) -> None:
    """``registered`` maps keys to blocks, ``tags`` blocks to keys."""
    content = reconcile(
        {key(name): block for name, block in registered.items()}, [(block, key(name)) for block, name in tags.items()]
    )
    if not tags:
        assert content == {key(name): block for name, block in registered.items()}
        return
    assert set(content) == set(map(key, tags.values())), "what the worker vouches for is found, and nothing else"
    for name, block in content.items():
        assert name == key(tags[block]), "no block is found under a key that it does not carry"
    for number, block in registered.items():
        assert (content.get(key(number)) == block) == (tags.get(block) == number)


def test_without_tags_the_registry_stands_alone() -> None:
    assert reconcile(entries(1, 2), []) == entries(1, 2)


# --- redis ---


async def test_a_new_process_finds_what_the_last_one_recorded(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as first:
        first.record(SPEC, list(entries(*range(1, 3000)).items()), [])
        first.record(SPEC, [], [key(number) for number in range(1, 1000)])
    async with opened(server.url) as second:
        assert await second.load(LATER) == entries(*range(1000, 3000))
        second.record(LATER, list(entries(1).items()), [key(1000)])
    assert await found_by_the_next(server.url, LATER) == entries(1, *range(1001, 3000))


async def test_another_life_wipes_what_the_last_one_stored(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as first:
        first.record(SPEC, list(entries(1).items()), [])
    assert await found_by_the_next(server.url, OTHERS["life"]) == {}
    assert await stored(server.url) == {}


async def test_a_worker_that_comes_back_with_another_model_leaves_nothing_of_the_last(
    server: RedisServer, redis: Redis
) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1).items()), [])
        await until_stored(server.url, entries(1))
        registry.record(OTHERS["model"], list(entries(2).items()), [])
    assert await stored(server.url, OTHERS["model"]) == entries(2)
    assert await redis.exists(*names_of(SPEC).all) == 0


async def test_a_dropped_pool_leaves_nothing_behind(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1).items()), [])
    assert await redis.keys() != []
    async with opened(server.url) as registry:
        await registry.load(SPEC)
        registry.drop(SPEC.pool)
        assert await registry.load(SPEC) == {}
        registry.drop(SPEC.pool)
    assert await redis.keys() == []


async def test_two_prefixes_do_not_see_each_other_and_foreign_keys_stay(server: RedisServer, redis: Redis) -> None:
    await redis.set("foreign", "untouched")
    await redis.hset("a:v1:{model/worker-0}:registry", "field", "value")
    async with opened(server.url, "a") as a, opened(server.url, "b") as b:
        a.record(SPEC, list(entries(1).items()), [])
        b.record(SPEC, list(entries(2).items()), [])
        b.drop("worker-1")
    assert await found_by_the_next(server.url, prefix="a") == entries(1)
    assert await found_by_the_next(server.url, prefix="b") == entries(2)
    async with opened(server.url, "a") as a:
        await a.load(SPEC)
        a.drop(SPEC.pool)
    assert await redis.get("foreign") == b"untouched"
    assert sorted(await redis.keys()) == [
        b"a:v1:{model/worker-0}:registry",
        b"b:v2:{model/worker-0}:pool",
        b"b:v2:{model/worker-0}:registry",
        b"foreign",
    ]


async def test_every_key_names_prefix_version_and_model_and_expires(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url, "mine") as registry:
        registry.record(SPEC, list(entries(1).items()), [])
        registry.watch(SPEC, lambda: {1: 1})
        await asyncio.sleep(registry_redis.LEASES_SECONDS + 0.5)
    found: list[Any] = await redis.keys()
    assert sorted(found) == [f"mine:v2:{{model/worker-0}}:{part}".encode() for part in ("leases", "pool", "registry")]
    assert all([0 < await redis.ttl(name) <= registry_redis.KEEP_SECONDS for name in found])


async def test_an_epoch_without_new_content_is_stored_too(server: RedisServer, redis: Redis) -> None:
    async with opened(server.url) as registry:
        registry.record(SPEC, list(entries(1).items()), [])
        await until_stored(server.url, entries(1))
        registry.record(replace(SPEC, epoch=7), [], [])
    record = await stored_pool(server.url)
    assert record is not None and record.spec == replace(SPEC, epoch=7)
    with pytest.raises(FencedError, match="7"):
        await found_by_the_next(server.url, replace(SPEC, epoch=6))
    assert await found_by_the_next(server.url, replace(SPEC, epoch=7)) == entries(1)


async def test_leases_are_stored_as_they_are_now_and_then(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_redis, "LEASES_SECONDS", 0.05)
    leases = {number: number % 7 for number in range(5000)}
    async with opened(server.url) as registry:
        registry.record(SPEC, [], [])
        registry.watch(SPEC, lambda: leases)
        record = None
        async with asyncio.timeout(10):
            while record is None:
                await asyncio.sleep(0.05)
                record = await stored_leases(server.url)
            assert (record.num_leases, len(record.blocks), record.blocks[13]) == (5000, 4096, 6)
            leases = {5: 3}
            while record.blocks != {5: 3}:
                await asyncio.sleep(0.05)
                record = await stored_leases(server.url) or record
        assert record.epoch == SPEC.epoch


async def test_of_two_services_the_one_with_the_later_epoch_has_the_pool_in_redis(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_redis, "REWRITE_SECONDS", 0.0)
    async with opened(server.url) as stale, opened(server.url) as current:
        stale.record(SPEC, list(entries(1).items()), [])
        await until_stored(server.url, entries(1))
        assert await current.load(LATER) == entries(1)
        current.record(LATER, list(entries(2).items()), [])
        await until_recorded(server.url, LATER)
        stale.record(SPEC, list(entries(10).items()), [])
        await asyncio.sleep(0.2)
        await until_recorded(server.url, LATER)
        for number in range(11, 60):
            stale.record(SPEC, list(entries(number).items()), [])
            await asyncio.sleep(0.02)
            record = await stored_pool(server.url)
            assert record is not None and record.spec == LATER, "it wrote again though it knew better"
        await until_stored(server.url, entries(1, 2))
        stale.drop(SPEC.pool)
        await until(lambda: current.status == stale.status == "redis")
        current.record(LATER, list(entries(3).items()), [])
        await until_stored(server.url, entries(1, 2, 3))
