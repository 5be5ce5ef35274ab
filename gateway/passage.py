"""One HTTP request on its way through the gateway: its id, its span, and the line that is logged when it ends."""

import logging
import re
import time
from collections.abc import Sequence
from uuid import uuid4

from starlette.requests import Request
from starlette.types import Scope

from augury import telemetry, tracing
from augury.tracing import SILENT, Span
from gateway.replies import Usage

SERVICE = "gateway"
_ACCEPTED_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_log = logging.getLogger(__name__)


class Passage:
    """``request_id`` is the client's own, if it is short printable ASCII, or else a new one.

    Only a POST has a span and a line in the log: the rest is for health and metrics, often and to no end.
    """

    def __init__(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        sent = headers.get(b"x-request-id", b"")
        self.request_id = sent.decode() if _ACCEPTED_ID.fullmatch(sent) else uuid4().hex
        # Never reset: the server logs a failure of the application after that has ended, in the same task.
        telemetry.request_id.set(self.request_id)
        self.status: int | None = None
        self._scope = scope
        self._started = time.perf_counter()
        self._span = _span(headers) if self._counts else SILENT
        self._usage: Usage | None = None
        self._outcomes: Sequence[str] = ()
        scope.setdefault("state", {})["passage"] = self

    @property
    def route(self) -> str:
        """The path as the application declares it: a bounded set, whatever clients ask for."""
        path: str = getattr(self._scope.get("route"), "path", "unknown")
        return path

    @property
    def span(self) -> Span:
        return self._span

    def report(self, usage: Usage, outcomes: Sequence[str]) -> None:
        """Tokens of all choices, and how each of them ended."""
        self._usage, self._outcomes = usage, outcomes

    def end(self) -> None:
        """The response is sent, or the client has left."""
        if self._counts:
            _log.info("answered", extra=self._log_fields())
            self._end_span()

    def _log_fields(self) -> dict[str, object]:
        seconds = round(time.perf_counter() - self._started, 3)
        fields = {"method": self._scope["method"], "route": self.route, "status": self.status, "seconds": seconds}
        if self._usage is None:
            return fields
        return {
            **fields,
            "prompt_tokens": self._usage.prompt_tokens,
            "cached_tokens": self._usage.prompt_tokens_details.cached_tokens,
            "completion_tokens": self._usage.completion_tokens,
            "outcomes": self._outcomes,
        }

    def _end_span(self) -> None:
        """Names of attributes are OpenTelemetry's, for HTTP and for generative models."""
        span, method = self._span, self._scope["method"]
        span.rename(f"{method} {self.route}")
        span.note({"http.request.method": method, "http.route": self.route, "augury.request_id": self.request_id})
        if self.status is not None:
            span.note({"http.response.status_code": self.status})
        if self._usage is not None:
            span.note(
                {
                    "gen_ai.usage.input_tokens": self._usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": self._usage.completion_tokens,
                    "gen_ai.response.finish_reasons": self._outcomes,
                    "augury.cached_tokens": self._usage.prompt_tokens_details.cached_tokens,
                }
            )
        span.end("the server failed" if self.status is not None and self.status >= 500 else None)

    @property
    def _counts(self) -> bool:
        return bool(self._scope["method"] == "POST")


def passage_of(request: Request) -> Passage:
    """That of a request inside the application."""
    passage: Passage = request.state.passage
    return passage


def _span(headers: dict[bytes, bytes]) -> Span:
    return tracing.start(SERVICE, "HTTP", headers.get(b"traceparent", b"").decode("latin-1") or None)
