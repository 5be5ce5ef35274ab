"""Who is let in: clients with a key, as long as the gateway is not shutting down, and only so many at once."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.exceptions import HTTPException
from starlette.requests import Request

from augury import limits
from augury.errors import NoWorkerError
from augury.shares import Shares
from gateway.api_keys import ApiKeys

_NO_KEY = "a valid API key is needed, as in: Authorization: Bearer KEY"


class Door:
    """Every request but those for health and metrics goes through it. Without ``keys`` everybody is one client."""

    def __init__(self, keys: ApiKeys | None = None) -> None:
        self.closed = False
        self._keys = keys
        self._num_inside = 0
        self._shares = Shares()
        self._left = asyncio.Event()

    async def enter(self, request: Request) -> AsyncGenerator[None, None]:
        """Around the whole of a request, its response included: a dependency of FastAPI.

        Raises NoWorkerError once closed, OverloadedError where too many are inside, RateLimitError where too many of
        this client are, HTTPException 401.
        """
        self.check_open()
        client = request.state.client = self._client(request)
        self._shares.check(client, limits.MAX_REQUESTS_PER_GATEWAY - self._num_inside)
        self._shares.take(client)
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1
            self._shares.give_back(client)
            self._left.set()

    def check_open(self) -> None:
        """Raises NoWorkerError once closed."""
        if self.closed:
            raise NoWorkerError("the gateway is shutting down")

    async def close(self) -> None:
        """Let nobody in any more, and wait until all have left."""
        self.closed = True
        while self._num_inside:
            self._left.clear()
            await self._left.wait()

    def _client(self, request: Request) -> bytes | None:
        if self._keys is None:
            return None
        client = self._keys.client(request.headers.get("authorization", ""))
        if client is None:
            raise HTTPException(401, _NO_KEY, {"www-authenticate": "Bearer"})
        return client


def client_of(request: Request) -> bytes | None:
    """The client of a request that was let in; None where everybody is one."""
    client: bytes | None = request.state.client
    return client
