"""One in-process call, as its two ends share it (see local.py)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import grpc

from augury import limits

MAX_QUEUED = 64
"""Messages that wait in one direction of a call before its writer has to wait."""

Metadatum = tuple[str, str | bytes]


class Direction(Enum):
    """Which way a message goes."""

    REQUEST = "request"
    RESPONSE = "response"


Fault = Callable[[str, Direction, bytes], Awaitable[Sequence[bytes]]]
"""A seam for tests: (method, direction, message) → the messages to deliver, none to lose it, two to repeat it.

It may sleep to delay this message and those behind it, or raise ConnectionError to break the call (UNAVAILABLE).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[Metadatum, ...] = ()
    local: bool = False
    """The client itself cancelled."""


class _Pipe:
    """One direction of a call: a bounded queue with an end, one reader and one writer at a time."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self.ended = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    async def put(self, message: bytes) -> bool:
        """Wait for room; False if the pipe has ended."""
        while len(self._messages) >= MAX_QUEUED and not self.ended:
            self._writable.clear()
            await self._writable.wait()
        if not self.ended:
            self._messages.append(message)
            self._readable.set()
        return not self.ended

    async def get(self) -> bytes | None:
        """The next message, or None after the last one."""
        while not self._messages and not self.ended:
            self._readable.clear()
            await self._readable.wait()
        self._writable.set()
        return self._messages.popleft() if self._messages else None

    def end(self, *, discard: bool = False) -> None:
        """Take no more messages; ``discard`` also drops those that wait."""
        if discard:
            self._messages.clear()
        self.ended = True
        self._readable.set()
        self._writable.set()


class Exchange:
    """One call as both ends share it. Its first status is its last."""

    def __init__(
        self,
        method: str,
        metadata: tuple[Metadatum, ...],
        *,
        streaming: bool,
        timeout: float | None,
        fault: Fault | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.method = method
        self.metadata = metadata
        self.requests = _Pipe()
        self.responses = _Pipe()
        self.status: asyncio.Future[Status] = loop.create_future()
        self.deadline = None if timeout is None else loop.time() + timeout
        self.broken = False
        self._streaming = streaming
        self._fault = fault
        if timeout is not None:
            late = Status(code=grpc.StatusCode.DEADLINE_EXCEEDED, details="Deadline Exceeded")
            timer = loop.call_later(timeout, self.abandon, late)
            self.status.add_done_callback(lambda _: timer.cancel())

    def finish(self, status: Status) -> bool:
        """End the call as its handler says; responses that wait are still delivered. False if it has ended already."""
        if self.status.done():
            return False
        self.status.set_result(status)
        self.requests.end(discard=True)
        self.responses.end()
        return True

    def abandon(self, status: Status) -> bool:
        """End the call at once, whatever waits. False if it has ended already."""
        if not self.finish(status):
            return False
        self.broken = True
        self.responses.end(discard=True)
        return True

    async def send(self, direction: Direction, message: bytes) -> bool:
        """Deliver a message, or False if the call has ended."""
        if len(message) > limits.MAX_MESSAGE_BYTES:
            details = f"a message of {len(message)} bytes; the limit is {limits.MAX_MESSAGE_BYTES}"
            self.abandon(Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED, details=details))
            return False
        pipe = self.requests if direction is Direction.REQUEST else self.responses
        if self._fault is None:
            return await pipe.put(message)
        try:
            delivered = await self._fault(self.method, direction, message)
        except ConnectionError as error:
            self.abandon(Status(code=grpc.StatusCode.UNAVAILABLE, details=f"connection lost: {error}"))
            return False
        if not delivered and not self._streaming:
            await asyncio.shield(self.status)  # a reply and its status are lost together, so the call stays open
        return all([await pipe.put(part) for part in delivered])

    def time_remaining(self) -> float | None:
        """Seconds to the deadline, None without one."""
        return None if self.deadline is None else max(self.deadline - asyncio.get_running_loop().time(), 0.0)
