"""What one choice adds to the metrics: when its tokens came, how many there were and how it ended."""

import time

from augury.types import Delta, Generation
from gateway.metrics import Metrics


class Meter:
    """Of one choice that is about to be submitted. ``started`` is the time.perf_counter() of its request's arrival."""

    def __init__(self, metrics: Metrics, generation: Generation, started: float) -> None:
        self._metrics = metrics
        self._generation = generation
        self._started = started
        self._submitted = time.perf_counter()
        self._waited_s = 0.0
        self._num_first = 0
        self._first = self._last = started

    def came(self, delta: Delta) -> None:
        """Tokens have just arrived."""
        if not delta.tokens:
            return
        now = time.perf_counter()
        if self._num_first:
            self._metrics.inter_token.observe(now - self._last)
        else:
            self._num_first, self._first = len(delta.tokens), now
            self._waited_s = min(delta.waited_ms / 1000, now - self._submitted)
            self._metrics.time_to_first_token.observe(now - self._started)
            self._metrics.queue_seconds.observe(self._waited_s)
            self._metrics.prefill_seconds.observe(now - self._submitted - self._waited_s)
        self._last = now

    def ended(self, outcome: str, num_tokens: int) -> None:
        """The choice has ended with ``num_tokens`` of text."""
        metrics, generation = self._metrics, self._generation
        metrics.generations.labels(outcome).inc()
        metrics.request_prompt_tokens.observe(len(generation.prompt))
        metrics.request_generation_tokens.observe(num_tokens)
        metrics.request_max_tokens.observe(generation.stopping.max_tokens)
        if self._num_first:
            metrics.decode_seconds.observe(self._last - self._first)
            metrics.inference_seconds.observe(self._last - self._submitted - self._waited_s)
        if num_tokens > self._num_first > 0:
            metrics.time_per_token.observe((self._last - self._first) / (num_tokens - self._num_first))
