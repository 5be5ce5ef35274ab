"""Around every request, in plain ASGI: its id, its count by route and status, and the end of its connection."""

import re
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.door import Door
from gateway.metrics import Metrics

_ACCEPTED_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Envelope:
    """Every response carries x-request-id: the client's own, if it is short printable ASCII, or else a new one.

    Once the door is closed, no connection outlives its response, so that clients turn to another gateway.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, door: Door) -> None:
        self._app = app
        self._metrics = metrics
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = sent if _ACCEPTED_ID.fullmatch(sent) else uuid4().hex.encode()

        async def send_enveloped(message: Message) -> None:
            if message["type"] == "http.response.start":
                last = [(b"connection", b"close")] if self._door.closed else []
                message["headers"] = [*message["headers"], (b"x-request-id", request_id), *last]
                self._metrics.http_requests.labels(_route(scope), message["status"]).inc()
            await send(message)

        await self._app(scope, receive, send_enveloped)


def _route(scope: Scope) -> str:
    """The path as the application declares it: a bounded set, whatever clients ask for."""
    return getattr(scope.get("route"), "path", "unknown")
