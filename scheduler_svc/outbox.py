"""What waits to be sent to one gateway, which of its requests are open, and what time they have."""

import asyncio
from dataclasses import dataclass

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
        """Nothing more is to be sent."""
        self._closed = True
        self._filled.set()

    async def take(self) -> list[Delta]:
        """Everything since the last call, at least one delta; none once the outbox is closed and empty."""
        await self._filled.wait()
        if not self._closed:
            self._filled.clear()
        deltas, self._deltas = self._deltas, []
        return deltas


@dataclass(slots=True, kw_only=True)
class Route:
    """Where a request's deltas go. ``submitted_at`` is on the event loop's clock, ``waited_ms`` unset until admission.

    ``deadline`` and ``patience`` are timers: for the request's end, and for a worker to come.
    """

    outbox: Outbox
    ticket: int
    submitted_at: float
    waited_ms: int | None = None
    deadline: asyncio.TimerHandle | None = None
    patience: asyncio.TimerHandle | None = None

    def worker_came(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def close(self) -> None:
        """The request has ended."""
        self.worker_came()
        if self.deadline is not None:
            self.deadline.cancel()
