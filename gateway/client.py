"""The scheduler as a Backend: one long-lived Generate stream carries every request of this process.

The stream is opened by the first request and, after it broke, by the next one; the pauses between attempts to connect
are the channel's (limits.CONNECT_RETRY_SECONDS). When it breaks, the scheduler cancels what came over it, and every
request still open here fails with NoWorkerError.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextvars import Context
from dataclasses import replace
from itertools import count

import grpc

from augury import limits
from augury.convert import deltas_from_wire, description_from_wire, submit_to_wire
from augury.errors import AuguryError, InvalidRequestError, NoWorkerError
from augury.shares import Shares
from augury.types import Delta, Description, Generation
from augury.v1 import scheduler_pb2 as pb
from augury.v1.scheduler_pb2_grpc import SchedulerStub

_DESCRIBE_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)

_Call = grpc.aio.StreamStreamCall[pb.ClientMessage, pb.ServerMessage]


class SchedulerClient:
    """Must be made and used inside one event loop."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = SchedulerStub(channel)
        self._tickets = count(1)
        self._link: _Link | None = None
        self._closed = False

    async def generate(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """As Backend.generate."""
        link = self._open_link()
        ticket = next(self._tickets)
        mailbox = link.submit(ticket, generation)
        try:
            ended = None
            while ended is None:
                delta = await mailbox.take()
                ended = delta.ended
                yield delta
        finally:
            link.leave(ticket)

    async def describe(self) -> Description:
        """As Backend.describe."""
        try:
            wire = await self._stub.Describe(pb.DescribeRequest(), timeout=_DESCRIBE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            _log.warning("the scheduler does not answer", extra={"reason": error.details()})
            raise NoWorkerError("the scheduler does not answer") from error
        return description_from_wire(wire)

    async def close(self) -> None:
        """Break the stream; open requests fail, and later ones too."""
        self._closed = True
        if self._link is not None:
            await self._link.close()

    def _open_link(self) -> "_Link":
        if self._closed:
            raise _shutting_down()
        if self._link is None or self._link.broken is not None:
            # In a context of its own: the stream outlives the request that opens it, and logs for none.
            self._link = Context().run(lambda: _Link(self._stub.Generate()))
        return self._link


def _shutting_down() -> NoWorkerError:
    return NoWorkerError("the gateway is shutting down")


class _Link:
    """One life of the stream: the open requests by ticket, and the tasks that read and write."""

    def __init__(self, call: _Call) -> None:
        self.broken: AuguryError | None = None
        self._call = call
        self._open: dict[int, _Mailbox] = {}
        self._shares = Shares()
        self._outbox: asyncio.Queue[pb.ClientMessage] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def submit(self, ticket: int, generation: Generation) -> "_Mailbox":
        """Raises OverloadedError where too many requests are open, or wait to be sent; RateLimitError where too many of
        the client are open.
        """
        num_taken = max(len(self._open), self._outbox.qsize())
        self._shares.check(generation.client, limits.MAX_REQUESTS_PER_GATEWAY - num_taken)
        self._shares.take(generation.client)
        mailbox = self._open[ticket] = _Mailbox(generation.client)
        self._outbox.put_nowait(pb.ClientMessage(submit=submit_to_wire(ticket, generation)))
        return mailbox

    def leave(self, ticket: int) -> None:
        """Forget a request; cancel it if it has not ended."""
        mailbox = self._open.pop(ticket)
        self._shares.give_back(mailbox.client)
        if not mailbox.has_end and self.broken is None:
            self._outbox.put_nowait(pb.ClientMessage(cancel=pb.Cancel(ticket=ticket)))

    async def close(self) -> None:
        self._break("closed by the gateway", _shutting_down())
        await asyncio.wait(self._tasks)

    async def _read(self) -> None:
        reason = "cancelled"
        try:
            while isinstance(message := await self._call.read(), pb.ServerMessage):
                self._deliver(message)
            reason = "closed by the scheduler"
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except InvalidRequestError as error:
            reason = f"a message cannot be read: {error}"
        finally:
            self._break(reason, NoWorkerError("the connection to the scheduler was lost"))

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader learns the reason

    def _deliver(self, message: pb.ServerMessage) -> None:
        for delta in deltas_from_wire(message):
            mailbox = self._open.get(delta.ticket)
            if mailbox is not None:  # a cancelled request may still bring deltas
                mailbox.put(delta)

    def _break(self, reason: str, error: AuguryError) -> None:
        if self.broken is not None:
            return
        level = logging.WARNING if self._open else logging.INFO
        _log.log(level, "the stream to the scheduler broke", extra={"reason": reason, "num_open": len(self._open)})
        self.broken = error
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        for mailbox in self._open.values():
            mailbox.fail(error)


class _Mailbox:
    """What arrived for one request and was not taken yet, merged. One reader."""

    __slots__ = ("_arrived", "_delta", "_error", "client", "has_end")

    def __init__(self, client: bytes | None) -> None:
        self.client = client
        self.has_end = False
        self._delta: Delta | None = None
        self._error: AuguryError | None = None
        self._arrived = asyncio.Event()

    def put(self, delta: Delta) -> None:
        self._delta = delta if self._delta is None else _merged(self._delta, delta)
        self.has_end = delta.ended is not None
        self._arrived.set()

    def fail(self, error: AuguryError) -> None:
        self._error = error
        self._arrived.set()

    async def take(self) -> Delta:
        """Raises the error given to ``fail``, once everything that came before it was taken."""
        await self._arrived.wait()
        delta, self._delta = self._delta, None
        if self._error is None:
            self._arrived.clear()
        elif delta is None:
            raise self._error
        assert delta is not None
        return delta


def _merged(earlier: Delta, later: Delta) -> Delta:
    return replace(
        later,
        tokens=earlier.tokens + later.tokens,
        num_drafts=earlier.num_drafts + later.num_drafts,
        num_accepted=earlier.num_accepted + later.num_accepted,
    )
