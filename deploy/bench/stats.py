"""What a run of requests amounts to. Pure: times come in, figures go out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request that was answered whole. Times in seconds on one monotonic clock.

    ``num_prompt`` is None where the server reports no usage; ``num_output`` then counts pieces of text.
    """

    sent: float
    first_token: float
    last_token: float
    num_prompt: int | None
    num_output: int

    def __post_init__(self) -> None:
        assert self.sent <= self.first_token <= self.last_token, "the clock ran backwards"
        assert self.num_output >= 1

    @property
    def ttft_ms(self) -> float:
        """Time to first token, from the request's first byte sent to the first piece of text."""
        return (self.first_token - self.sent) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.num_output == 1:
            return None
        return (self.last_token - self.first_token) * 1e3 / (self.num_output - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request that was not answered whole, and why: a ``reason`` to count by, and what the server said of it."""

    reason: str
    detail: str | None = None


Result = Answered | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Linear interpolation between the two nearest values, as numpy.percentile."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One level of concurrency. Tokens are those of whole answers only; None marks what could not be measured."""

    concurrency: int
    num_requests: int
    errors: Mapping[str, int]
    wall_s: float
    num_prompt_tokens: int | None
    num_output_tokens: int
    output_tokens_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    cpu_ms_per_output_token: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How a level of concurrency was run. ``cpu_s`` is the server's CPU time, None where nobody looked."""

    concurrency: int
    wall_s: float
    cpu_s: float | None


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """None for no values."""
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, [50, 95, 99]).tolist()
    return Percentiles(p50=p50, p95=p95, p99=p99)


def summarise(level: Level, results: Sequence[Result]) -> Summary:
    answered = [result for result in results if isinstance(result, Answered)]
    prompts = [result.num_prompt for result in answered if result.num_prompt is not None]
    num_output = sum(result.num_output for result in answered)
    return Summary(
        concurrency=level.concurrency,
        num_requests=len(results),
        errors=dict(Counter(result.reason for result in results if isinstance(result, Failed))),
        wall_s=level.wall_s,
        num_prompt_tokens=sum(prompts) if len(prompts) == len(answered) else None,
        num_output_tokens=num_output,
        output_tokens_per_s=num_output / level.wall_s,
        ttft_ms=percentiles([result.ttft_ms for result in answered]),
        tpot_ms=percentiles([result.tpot_ms for result in answered if result.tpot_ms is not None]),
        cpu_ms_per_output_token=level.cpu_s * 1e3 / num_output if level.cpu_s is not None and num_output else None,
    )
