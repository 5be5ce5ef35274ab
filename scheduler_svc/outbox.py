"""What waits to be sent to one gateway, and which of its requests are open."""

import asyncio

from augury import limits
from augury.errors import InvalidRequestError, OverloadedError
from augury.types import Delta


class Outbox:
    """Deltas for one gateway stream, gathered while the stream is busy; bounded by the requests it may have open."""

    def __init__(self) -> None:
        self.handles: dict[int, int] = {}
        self._deltas: list[Delta] = []
        self._closed = False
        self._filled = asyncio.Event()

    def check_open(self, ticket: int) -> None:
        """Raise unless ``ticket`` may name a new request."""
        if ticket in self.handles:
            raise InvalidRequestError(f"ticket {ticket} is in use")
        if len(self.handles) >= limits.MAX_REQUESTS_PER_GATEWAY:
            raise OverloadedError(f"this gateway has {limits.MAX_REQUESTS_PER_GATEWAY} requests open already")

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if delta.ended:
            self.handles.pop(delta.ticket, None)
        self._filled.set()

    def close(self) -> None:
        """No more is wanted."""
        self._closed = True
        self._filled.set()

    async def take(self) -> list[Delta]:
        """Everything since the last call, at least one delta; none once the outbox is closed."""
        await self._filled.wait()
        if self._closed:
            return []
        self._filled.clear()
        deltas, self._deltas = self._deltas, []
        return deltas
