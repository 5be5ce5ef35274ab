"""The KV service as its schedulers see it: pools opened anew and after a restart, by what Redis and the worker say."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from redis.asyncio import Redis

from augury import convert, limits
from augury.errors import FencedError, InvalidRequestError, UnknownPoolError
from augury.types import Holding, Miss, Reserve, Seal
from kvcache_svc import registry_redis, service
from tests.kvcache.kv_client import SPEC, serving
from tests.kvcache.registries import key, stored, stored_leases, stored_pool, until_stored
from tests.redis_server import RedisServer


async def test_after_a_restart_an_epoch_that_was_superseded_is_refused(server: RedisServer, redis: Redis) -> None:
    async with serving(server.url) as client:
        await client.open()
        await client.open(replace(SPEC, epoch=7))
    async with serving(server.url) as client:
        for stale in (SPEC, replace(SPEC, epoch=6), replace(SPEC, epoch=7, incarnation="another")):
            with pytest.raises(FencedError):
                await client.open(stale)
        with pytest.raises(UnknownPoolError):
            await client.step()
        await client.open(replace(SPEC, epoch=7))
        await client.step(epoch=7)


async def test_after_a_restart_leases_go_on_and_prefixes_are_found(server: RedisServer, redis: Redis) -> None:
    async with serving(server.url) as client:
        await client.open()
        granted = await client.fill(1, key(1), key(2))
        await client.fill(2, key(3))
        await client.step(releases=[2])
        before = await client.state()
        await until_stored(server.url, {key(1): 1, key(2): 2, key(3): 4})
    (table,) = granted.blocks
    seals = tuple(Seal(lease=1, index=index, key=key(index + 1)) for index in range(2))
    holding = Holding(lease=1, blocks=(table,), seals=seals)
    async with serving(server.url) as client:
        await client.open(SPEC, [holding], [(table[0], key(1)), (table[1], key(2)), (4, key(3))])
        after = await client.state()
        assert (after.num_leases, after.num_adopted, after.num_restored) == (1, 1, 3)
        for field in ("num_free", "num_open", "num_sealed", "num_cached"):
            assert getattr(after, field) == getattr(before, field)
        assert await client.hit(key(1), key(2)) == 8
        assert await client.hit(key(3)) == 4
        (granted_more,) = (await client.step(Reserve(lease=1, num_slots=13, num_ahead=4, num_computed=9))).reserves
        assert granted_more is not None and len(granted_more.blocks[0]) == 1


async def test_opening_twice_after_a_restart_takes_over_once(server: RedisServer, redis: Redis) -> None:
    holding = Holding(lease=1, blocks=((3, 4),), seals=(Seal(lease=1, index=0, key=key(1)),))
    async with serving(server.url) as client:
        await client.open(SPEC, [holding], [(3, key(1))])
        await client.step(releases=[1])
        await client.open(SPEC, [holding], [(3, key(1))])
        assert (await client.state()).num_leases == 0


async def test_a_stale_entry_is_found_nowhere_once_the_worker_has_told_its_tags(
    server: RedisServer, redis: Redis
) -> None:
    async with serving(server.url) as client:
        await client.open()
        await client.fill(1, key(1), key(2), key(3))
        await client.step(releases=[1])
        await until_stored(server.url, {key(1): 1, key(2): 2, key(3): 3})
    tags = [(1, key(7)), (5, key(2))]
    async with serving(server.url) as client:
        await client.open(SPEC, tags=tags)
        assert await client.hit(key(1)) == 0
        assert await client.hit(key(7)) == 4
        assert await client.hit(key(2)) == 4
        assert await client.hit(key(3)) == 0
        await until_stored(server.url, {key(7): 1, key(2): 5})


async def test_without_tags_the_registry_is_believed_and_an_entry_of_a_held_block_is_not(
    server: RedisServer, redis: Redis
) -> None:
    async with serving(server.url) as client:
        await client.open()
        await client.fill(1, key(1), key(2))
        await client.step(releases=[1])
        await until_stored(server.url, {key(1): 1, key(2): 2})
    holding = Holding(lease=1, blocks=((2,),), seals=())
    async with serving(server.url) as client:
        await client.open(SPEC, [holding])
        assert await client.hit(key(1)) == 4
        assert await client.hit(key(2)) == 0
        await until_stored(server.url, {key(1): 1})


async def test_impossible_leases_are_refused_and_nothing_is_opened(server: RedisServer, redis: Redis) -> None:
    async with serving(server.url) as client:
        for table in ((12,), (-1,), (3, 3)):
            with pytest.raises(InvalidRequestError):
                await client.open(SPEC, [Holding(lease=1, blocks=(table,), seals=())])
        with pytest.raises(InvalidRequestError):
            await client.open(replace(SPEC, groups=()))
        with pytest.raises(InvalidRequestError):
            await client.open(replace(SPEC, num_blocks=1))
        with pytest.raises(UnknownPoolError):
            await client.step()


async def test_redis_learns_epoch_and_leases(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_redis, "LEASES_SECONDS", 0.05)
    async with serving(server.url) as client:
        await client.open()
        await client.fill(1, key(1), key(2))
        await client.open(replace(SPEC, epoch=6))
        await client.step(Reserve(lease=4, num_slots=9, num_ahead=8), epoch=6)
        await asyncio.sleep(1)
    leases = await stored_leases(server.url)
    assert leases is not None and (leases.epoch, leases.blocks) == (6, {4: 3})
    record = await stored_pool(server.url)
    assert record is not None and record.spec.epoch == 6


async def test_without_redis_pools_open_step_and_hit_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_redis, "CLOSE_SECONDS", 0.1)
    with RedisServer() as server:
        server.kill()
        async with asyncio.timeout(20), serving(server.url) as client:
            await client.open()
            await client.fill(1, key(1), key(2))
            await client.open(replace(SPEC, epoch=6))
            assert await client.hit(key(1), key(2), epoch=6) == 8
            await client.until_registry("redis (degraded)")
            server.start()
            await until_stored(server.url, {key(1): 1, key(2): 2})
            await client.until_registry("redis")


async def test_a_pool_that_nobody_uses_is_forgotten_here_but_not_in_redis(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POOL_IDLE_SECONDS", 0.3)
    async with serving(server.url) as client:
        await client.open()
        await client.fill(1, key(1))
        await until_stored(server.url, {key(1): 1})
        await asyncio.sleep(0.4)
        await client.open(replace(SPEC, pool="worker-1"))
        with pytest.raises(UnknownPoolError):
            await client.step()
        with pytest.raises(FencedError):
            await client.open(replace(SPEC, epoch=4))
        assert await stored(server.url) == {key(1): 1}
        await redis.flushall()
        await client.open(replace(SPEC, epoch=6))
        assert await client.hit(key(1), epoch=6) == 0, "what Redis lost nobody else has kept"


async def test_inspection_tells_why_lookups_missed_and_what_is_hot() -> None:
    async with serving(None) as client:
        await client.open()
        await client.fill(1, key(1), key(2))
        for _ in range(3):
            assert await client.hit(key(1), key(2)) == 8
        assert await client.hit(key(1), key(5)) == 4
        state = await client.state(num_prefixes=1)
        assert (state.num_lookups, state.query_tokens, state.hit_tokens) == (4, 32, 28)
        assert dict(state.misses) == {convert.common.miss_to_wire(Miss.COLD): 1}
        (hottest,) = state.hottest
        assert (hottest.key, hottest.num_tokens, hottest.num_hits) == (key(2), 8, 3)
        (group,) = state.groups
        assert (group.group.block_size, group.num_open, group.num_sealed, group.num_held) == (4, 1, 2, 3)
        assert sum(state.lifetime.counts) == sum(state.idle.counts) == 0
        assert len(state.lifetime.counts) == len(state.lifetime.bounds) + 1
        assert not (await client.state()).hottest
        with pytest.raises(grpc.aio.AioRpcError, match="10000"):
            await client.state(service.MAX_PREFIXES + 1)
