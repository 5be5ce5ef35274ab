"""A Redis server for a module's tests, empty for each."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from tests.redis_server import RedisServer


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
