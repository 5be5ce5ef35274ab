"""Server-sent events, written straight to ASGI; and what to do about clients that leave."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from augury.errors import AuguryError
from gateway.failures import error_body

T = TypeVar("T")

_DONE = b"data: [DONE]\n\n"


def event(content: msgspec.Struct) -> bytes:
    """One event that carries JSON."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The result of ``work``; if the client leaves first, ``work`` is cancelled and ClientDisconnect raised.

    The request's body must have been read.
    """
    task, watch = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends ``events``, each of them one or more rendered events, and then [DONE].

    An AuguryError before the first of them is raised, so that it becomes an ordinary response; a later one is sent
    as the last event. When the client leaves, ``events`` is closed at once.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream"
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await unless_gone(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            body = await anext(events)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                async for body in events:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except AuguryError as error:
                failure = b"data: " + error_body(error) + b"\n\n"
                await send({"type": "http.response.body", "body": failure, "more_body": True})
        await send({"type": "http.response.body", "body": _DONE, "more_body": False})
