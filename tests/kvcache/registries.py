"""Registries opened for a test, and what Redis holds seen from outside."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from augury.geometry import KvGroup
from augury.keys import KEY_BYTES
from augury.types import PoolSpec
from kvcache_svc.records import LeasesRecord, Names, PoolRecord, names, read_leases, read_pool
from kvcache_svc.registry import Registry, open_registry

SPEC = PoolSpec(
    pool="worker-0",
    incarnation="life-1",
    fingerprint="model",
    epoch=1,
    num_blocks=5000,
    groups=(KvGroup(block_size=16), KvGroup(block_size=16, window=64, has_drafts=True)),
)


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def entries(*numbers: int) -> dict[bytes, int]:
    return {key(number): number for number in numbers}


@asynccontextmanager
async def opened(url: str | None, prefix: str = "augury") -> AsyncIterator[Registry]:
    registry = open_registry(url, prefix)
    try:
        yield registry
    finally:
        await registry.close()


async def found_by_the_next(url: str, spec: PoolSpec = SPEC, prefix: str = "augury") -> dict[bytes, int]:
    """What a KV service that starts afresh finds. It owns the pool from then on."""
    async with opened(url, prefix) as fresh:
        content = await fresh.load(spec)
        fresh.record(spec, [], [])
        return content


def names_of(spec: PoolSpec = SPEC, prefix: str = "augury") -> Names:
    return names(prefix, spec)


async def stored(url: str, spec: PoolSpec = SPEC) -> dict[bytes, int]:
    """The entries in Redis, seen without touching it."""
    async with Redis.from_url(url) as client:
        fields: dict[Any, Any] = await client.hgetall(names_of(spec).registry)
        return {field: int(value) for field, value in fields.items()}


async def stored_pool(url: str, spec: PoolSpec = SPEC) -> PoolRecord | None:
    async with Redis.from_url(url) as client:
        return read_pool(await client.get(names_of(spec).pool))


async def stored_leases(url: str, spec: PoolSpec = SPEC) -> LeasesRecord | None:
    async with Redis.from_url(url) as client:
        return read_leases(await client.get(names_of(spec).leases))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_stored(url: str, expected: dict[bytes, int], spec: PoolSpec = SPEC) -> None:
    found: dict[bytes, int] | None = None
    for _ in range(400):
        with suppress(ResponseError, ValueError):  # foreign values
            found = await stored(url, spec)
        if found == expected:
            return
        await asyncio.sleep(0.05)
    assert found == expected


async def until_recorded(url: str, spec: PoolSpec) -> None:
    record: PoolRecord | None = None
    for _ in range(400):
        with suppress(ResponseError):
            record = await stored_pool(url, spec)
        if record is not None and record.spec == spec:
            return
        await asyncio.sleep(0.05)
    assert record is not None and record.spec == spec
