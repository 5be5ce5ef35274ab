"""The choices of one request while they are generated: deltas of tokens become pieces of text."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from augury import errors
from augury.errors import AuguryError, InternalError, NoWorkerError
from augury.types import Delta, Ended, EndReason, Generation
from gateway.backend import Backend
from gateway.deadline import until
from gateway.merge import merge
from gateway.meter import Meter
from gateway.metrics import Metrics
from gateway.model import ServedModel
from gateway.replies import Piece, Usage, usage_of
from gateway.text import TextStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one HTTP request asks for: ``choices_per_prompt`` generations for each of its prompts, in order.

    All of it before ``deadline`` on the event loop's clock, if there is one. ``report`` is told at the end what tokens
    it took, and how each choice ended: see Meter.ended.
    """

    generations: Sequence[Generation]
    choices_per_prompt: int
    stops: Sequence[str]
    deadline: float | None = None
    report: Callable[[Usage, Sequence[str]], None]


class Run:
    """Generates the choices of a job together. ``started`` is the time.perf_counter() of the request's arrival."""

    def __init__(self, job: Job, model: ServedModel, backend: Backend, metrics: Metrics, started: float) -> None:
        self._job = job
        self._backend = backend
        self._metrics = metrics
        self._started = started
        self._texts = [TextStream(model.token_bytes, each.stopping, job.stops) for each in job.generations]
        self._num_cached = [0] * len(self._texts)
        self._num_drafts = self._num_accepted = 0
        self._outcomes = ["cancelled"] * len(self._texts)

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """Pieces of all choices as they come, those that wait in one list; each choice's last has a finish reason.

        Closing it cancels what is still generated. Raises the AuguryError of the first choice that fails.
        """
        streams = [self._choice(index) for index in range(len(self._texts))]
        try:
            async with aclosing(merge(streams)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._metrics.request_choices.observe(self._job.choices_per_prompt)
            self._metrics.request_seconds.observe(time.perf_counter() - self._started)
            self._metrics.count(self.usage())
            self._job.report(self.usage(), self._outcomes)

    def usage(self) -> Usage:
        """Tokens so far. A prompt and its cached tokens count once, however many choices it has."""
        firsts = range(0, len(self._texts), self._job.choices_per_prompt)
        return usage_of(
            num_prompt=sum(len(self._job.generations[first].prompt) for first in firsts),
            num_cached=sum(self._num_cached[first] for first in firsts),
            num_completion=sum(text.num_tokens for text in self._texts),
            num_drafts=self._num_drafts,
            num_accepted=self._num_accepted,
        )

    async def _choice(self, index: int) -> AsyncGenerator[Piece, None]:
        generation = self._job.generations[index]
        meter = Meter(self._metrics, generation, self._started)
        source = self._backend.generate(generation)
        if self._job.deadline is not None:
            source = until(self._job.deadline, source)
        try:
            async with aclosing(source) as deltas:
                async for delta in deltas:
                    meter.came(delta)
                    piece = self._piece(index, delta)
                    self._outcomes[index] = piece.finish_reason or self._outcomes[index]
                    yield piece
                    if piece.finish_reason is not None:
                        return
        except AuguryError as error:
            self._outcomes[index] = error.code
            raise
        finally:
            meter.ended(self._outcomes[index], self._texts[index].num_tokens)

    def _piece(self, index: int, delta: Delta) -> Piece:
        text = self._texts[index]
        num_before = text.num_tokens
        shown = text.feed(delta.tokens)
        self._num_cached[index] = delta.num_cached
        self._num_drafts += delta.num_drafts
        # Drafts behind a stop string were accepted by the worker, but are no text.
        self._num_accepted += min(delta.num_accepted, text.num_tokens - num_before)
        if delta.ended is None:
            return Piece(index=index, text=shown, finish_reason="stop" if text.stopped else None)
        shown += text.finish()
        return Piece(index=index, text=shown, finish_reason="stop" if text.stopped else _finish_reason(delta.ended))


_FINISH_REASONS = {EndReason.STOP: "stop", EndReason.LENGTH: "length"}
"""OpenAI's names."""


def _finish_reason(ended: Ended) -> str:
    """Raises the AuguryError of a request that did not finish."""
    if ended.reason is EndReason.FAILED:
        raise errors.from_code(ended.error_code or InternalError.code, ended.error_message or "the request failed")
    if ended.reason is EndReason.CANCELLED:
        raise NoWorkerError("the server cancelled the request")
    return _FINISH_REASONS[ended.reason]
