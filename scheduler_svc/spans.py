"""Spans of the scheduler: one for each request, from its submission to its end, with what happened to it between."""

from dataclasses import dataclass

from augury import tracing
from augury.tracing import SILENT, Span, Value
from augury.types import Delta, Ended, Generation, Step

SERVICE = "scheduler"


@dataclass(slots=True, kw_only=True)
class _Open:
    span: Span
    worker_id: str | None = None


def begin(generation: Generation) -> Span:
    """A request has come."""
    attributes: dict[str, Value] = {
        "augury.request_id": generation.request_id,
        "augury.prompt_tokens": len(generation.prompt),
        "augury.emitted_tokens": len(generation.emitted),
    }
    return tracing.start(SERVICE, "schedule", generation.trace, attributes)


class Spans:
    """Those of open requests, by handle. Without traced requests it costs a comparison for each step."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def follow(self, handle: int, span: Span) -> None:
        """The request of ``span`` was accepted."""
        if span is not SILENT:
            self._open[handle] = _Open(span=span)

    def stepped(self, worker_id: str, step: Step) -> None:
        """``step`` goes to a worker: it takes requests up, and lets go of others, ended or not."""
        if not self._open:
            return
        for handle in step.released:
            if handle in self._open:
                self._open[handle].span.event("put back", {"augury.worker": worker_id})
        for request in step.fresh:
            if request.handle in self._open:
                self._admitted(self._open[request.handle], worker_id, request.num_computed)

    def published(self, delta: Delta) -> None:
        """``delta``, by handle, is on its way to the gateway."""
        if delta.ended is not None and delta.ticket in self._open:
            finish(self._open.pop(delta.ticket).span, delta.ended)

    def _admitted(self, request: _Open, worker_id: str, num_hit: int) -> None:
        moved = request.worker_id not in (None, worker_id)
        request.worker_id = worker_id
        attributes: dict[str, Value] = {"augury.worker": worker_id, "augury.hit_tokens": num_hit}
        request.span.event("moved" if moved else "admitted", attributes)


def finish(span: Span, ended: Ended) -> None:
    """The request has ended, or was refused."""
    span.note({"augury.outcome": ended.error_code or ended.reason.value})
    span.end(ended.error_message)
