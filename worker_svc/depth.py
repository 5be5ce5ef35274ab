"""How many drafts each request chains: as many as make the most tokens per second, by what was measured so far.

Decides counts alone, so it can cost time but never change a text. No clock in here: durations come in as arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

_DECAY = 0.9
"""Weight of a draft's fate against the next one's: a request's estimates look back about ten drafts."""
_PRIOR = 4.0
"""Drafts that the worker's estimate, which a request starts from, counts for."""
_HOPE = 0.6
"""Acceptance that a worker expects before its first draft was judged."""
_WORKER_DECAY = 0.98
_SMOOTHING = 0.2
"""Weight of the latest duration of its kind."""
_OUTLIER = 3.0
"""A duration counts as at most so many times what was expected: neighbours on the machine make rare long ones."""
_PROBE_SHARE = 0.01
"""Share of the time that trying unpromising depths may take."""


@dataclass(slots=True)
class Rate:
    """An exponential average of yes and no, which begins as ``_PRIOR`` opinions."""

    weighted: float
    weight: float = _PRIOR

    @property
    def value(self) -> float:
        return self.weighted / self.weight

    def add(self, yes: bool, decay: float) -> None:
        self.weighted = self.weighted * decay + yes
        self.weight = self.weight * decay + 1


@dataclass(slots=True)
class Acceptance:
    """``rates[i]`` estimates how often draft i is accepted where all before it are."""

    rates: list[Rate]

    @classmethod
    def expecting(cls, values: Sequence[float]) -> "Acceptance":
        return cls([Rate(value * _PRIOR) for value in values])

    def add(self, fates: Sequence[bool], decay: float = _DECAY) -> None:
        """Learn from the drafts of one step, up to the first that was rejected."""
        for rate, accepted in zip(self.rates, fates, strict=False):
            rate.add(accepted, decay)

    def reached(self, limit: int) -> list[float]:
        """The chance of each of the first ``limit`` drafts to be accepted."""
        return list(accumulate((rate.value for rate in self.rates[:limit]), mul))


@dataclass(slots=True)
class Curve:
    """Seconds as a function of a count, averaged in classes a factor of two wide."""

    points: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By class: mean count and mean seconds."""

    def add(self, count: int, seconds: float) -> None:
        kind = count.bit_length()
        if kind in self.points:
            mean_count, mean_seconds = self.points[kind]
            seconds = min(seconds, _OUTLIER * mean_seconds)
            count_, seconds = (
                mean + _SMOOTHING * (new - mean) for mean, new in ((mean_count, count), (mean_seconds, seconds))
            )
            self.points[kind] = (count_, seconds)
        else:
            self.points[kind] = (float(count), seconds)

    def at(self, count: int) -> float:
        """Interpolated; outside of what was measured, the nearest: that nothing costs more until it was tried."""
        below = max((point for point in self.points.values() if point[0] <= count), default=None)
        above = min((point for point in self.points.values() if point[0] >= count), default=None)
        if below is None or above is None:
            return (below or above or (0.0, 0.0))[1]
        if above[0] == below[0]:
            return below[1]
        share = (count - below[0]) / (above[0] - below[0])
        return below[1] + share * (above[1] - below[1])


class DepthPolicy:
    """``num_drafts`` is the deepest; ``fixed`` chains as many for every request that may."""

    def __init__(self, num_drafts: int, *, fixed: bool) -> None:
        self.num_drafts = num_drafts
        self._fixed = fixed
        self._worker = Acceptance.expecting([_HOPE] * num_drafts)
        self._target = Curve()
        self._module = Curve()
        self._probe_s = 0.0

    def newcomer(self) -> Acceptance:
        """What is expected of a request of which nothing is known: the acceptance of all lately."""
        return Acceptance.expecting([rate.value for rate in self._worker.rates])

    def judge(self, request: Acceptance, fates: Sequence[bool]) -> None:
        """Of a request's verified drafts, up to the first that was rejected, whether each was accepted."""
        request.add(fates)
        self._worker.add(fates, _WORKER_DECAY)

    def time_target(self, num_rows: int, seconds: float) -> None:
        """A forward pass of the target took ``seconds`` for ``num_rows`` tokens."""
        self._target.add(num_rows, seconds)

    def time_module(self, num_requests: int, seconds: float) -> None:
        """A module took ``seconds``, its draw included, for the drafts of ``num_requests``."""
        self._module.add(num_requests, seconds)

    def choose(self, requests: Sequence[Acceptance], limits: Sequence[int]) -> list[int]:
        """Drafts for each request, at most its limit."""
        if self._fixed or not any(limits):
            return list(limits)
        chances = [request.reached(limit) for request, limit in zip(requests, limits, strict=True)]
        depths = self._best(chances)
        if depths == list(limits):
            return depths
        extra_s = self._seconds(limits) - self._seconds(depths)
        self._probe_s += _PROBE_SHARE * self._seconds(depths)
        if self._probe_s < extra_s:
            return depths
        self._probe_s = 0.0
        return list(limits)

    def _best(self, chances: Sequence[Sequence[float]]) -> list[int]:
        """Maximises tokens per second by Dinkelbach's method: at a rate r, a draft pays if its chance is above r times
        what its row costs the target, and a module if what its drafts bring pays for its own run.
        """
        num_requests, num_all = len(chances), sum(map(len, chances))
        row_s = max(0.0, self._target.at(num_requests + num_all) - self._target.at(num_requests)) / num_all
        depths = [0] * num_requests
        for _ in range(3):
            tokens = num_requests + sum(sum(chance[:depth]) for chance, depth in zip(chances, depths, strict=True))
            seconds = self._seconds(depths)
            if seconds <= 0:
                return [len(chance) for chance in chances]
            depths = self._paying(chances, tokens / seconds, row_s)
        return depths

    def _paying(self, chances: Sequence[Sequence[float]], rate: float, row_s: float) -> list[int]:
        best, best_gain, gain = 0, 0.0, 0.0
        for index in range(self.num_drafts):
            gains = [chance[index] - rate * row_s for chance in chances if index < len(chance)]
            paying = [value for value in gains if value > 0]
            if not paying:
                break
            gain += sum(paying) - rate * self._module.at(len(paying))
            if gain > best_gain:
                best, best_gain = index + 1, gain
        return [sum(value > rate * row_s for value in chance[:best]) for chance in chances]

    def _seconds(self, depths: Sequence[int]) -> float:
        """What a step takes that verifies and drafts so many."""
        modules = sum(self._module.at(sum(depth > index for depth in depths)) for index in range(max(depths)))
        return self._target.at(len(depths) + sum(depths)) + modules
