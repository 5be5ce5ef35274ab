"""Around every request, in plain ASGI: its id, its count by route and status, its span, and its connection's end."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.door import Door
from gateway.metrics import Metrics
from gateway.passage import Passage


class Envelope:
    """Every response carries x-request-id, and so does every line that is logged on the way (see gateway.passage).

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
        passage = Passage(scope)

        async def send_enveloped(message: Message) -> None:
            if message["type"] == "http.response.start":
                passage.status = message["status"]
                own = [(b"x-request-id", passage.request_id.encode())]
                last = [(b"connection", b"close")] if self._door.closed else []
                message["headers"] = [*message["headers"], *own, *last]
                self._metrics.http_requests.labels(passage.route, passage.status).inc()
            await send(message)

        try:
            await self._app(scope, receive, send_enveloped)
        finally:
            passage.end()
