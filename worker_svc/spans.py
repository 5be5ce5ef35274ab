"""Spans of a worker: one for each time that it holds a traced request, from the first to the last step with it."""

import time
from dataclasses import dataclass

from augury import tracing
from augury.tracing import SILENT, Span
from augury.types import NewRequest, Outcome, Step

SERVICE = "worker"


@dataclass(slots=True, kw_only=True)
class _Held:
    span: Span
    until_ns: int
    num_steps: int = 0
    num_emitted: int = 0
    num_drafts: int = 0


class Spans:
    """Told of every step. Without traced requests that costs a comparison."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._epoch: int | None = None

    def begins(self, step: Step) -> None:
        """``step`` is about to run."""
        if step.epoch != self._epoch:
            self._epoch = step.epoch
            for handle in list(self._held):
                self._end(handle)
        for handle in step.released:
            self._end(handle)
        for request in step.fresh:
            self._begin(request)

    def ended(self, step: Step, outcome: Outcome) -> None:
        """``step`` has run."""
        if not self._held:
            return
        now = time.time_ns()
        for row, emitted in zip(step.rows, outcome.emitted, strict=True):
            held = self._held.get(row.handle)
            if held is not None:
                held.until_ns = now
                held.num_steps += 1
                held.num_emitted += len(emitted)
                held.num_drafts += row.num_drafts

    def _begin(self, request: NewRequest) -> None:
        if request.trace is None or request.handle in self._held:
            return
        attributes = {"augury.tokens": len(request.tokens), "augury.hit_tokens": request.num_computed}
        span = tracing.start(SERVICE, "compute", request.trace, attributes)
        if span is not SILENT:
            self._held[request.handle] = _Held(span=span, until_ns=time.time_ns())

    def _end(self, handle: int) -> None:
        held = self._held.pop(handle, None)
        if held is None:
            return
        held.span.note(
            {
                "augury.steps": held.num_steps,
                "augury.emitted_tokens": held.num_emitted,
                "augury.verified_drafts": held.num_drafts,
            }
        )
        held.span.end(at_ns=held.until_ns)
