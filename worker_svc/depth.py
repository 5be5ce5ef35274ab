"""How many drafts each request chains: as many as make the most tokens per second, by what was measured so far.

Decides counts alone, so it can cost time but never change a text. No clock in here: durations come in as arguments.
"""

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

_DECAY = 0.97
"""Weight of a draft's fate against the next one's: a request's estimates look back about thirty drafts."""
_PRIOR = 10.0
"""Drafts that what is known of all requests counts for in the estimate of one."""
_HOPE = 0.6
"""Acceptance that a worker expects before its first draft was judged."""
_ALL_PRIOR = 2.0
"""Drafts that this hope, and at each later position what is known of the one before, counts for."""
_ALL_DECAY = 0.99
"""As ``_DECAY``, over the drafts of all requests together."""
_FALL, _RISE = 0.5, 0.05
"""Weight of the latest duration where it is shorter, and where it is longer, than expected: neighbours on the machine
only ever make it longer, so the low side says more about the work itself."""
_NUM_COLD = 5
"""Of so many first durations of a kind the shortest counts: caches were cold."""
_MAX_GAP_RISE = 2.0
"""A gap between steps that is longer than so many usual ones was idle time, and counts as no more."""
_PROBE_SHARE = 0.01
"""Share of the time that trying unpromising depths may take."""


@dataclass(slots=True)
class Rate:
    """An exponentially weighted count of yes among answers."""

    yes: float = 0.0
    total: float = 0.0

    def add(self, answer: bool, decay: float) -> None:
        self.yes = self.yes * decay + answer
        self.total = self.total * decay + 1

    def share(self, prior: float, weight: float) -> float:
        """Of yes, where ``weight`` more answers were as ``prior``."""
        return (self.yes + weight * prior) / (self.total + weight)


@dataclass(slots=True)
class Acceptance:
    """``rates[i]`` tells how often draft i was accepted where all before it were."""

    rates: list[Rate]

    @classmethod
    def unknown(cls, num_drafts: int) -> "Acceptance":
        return cls([Rate() for _ in range(num_drafts)])

    def add(self, fates: Sequence[bool], decay: float) -> None:
        """Learn from the drafts of one step, up to the first that was rejected."""
        for rate, accepted in zip(self.rates, fates, strict=False):
            rate.add(accepted, decay)

    def usual(self) -> list[float]:
        """Shares of accepted drafts; where little is known of a position, it is as the one before."""
        shares, prior = [], _HOPE
        for rate in self.rates:
            prior = rate.share(prior, _ALL_PRIOR)
            shares.append(prior)
        return shares

    def chances(self, usual: Sequence[float], limit: int) -> list[float]:
        """Of the first ``limit`` drafts, how likely each is to be accepted with all before it."""
        shares = (rate.share(prior, _PRIOR) for rate, prior in zip(self.rates[:limit], usual, strict=False))
        return list(itertools.accumulate(shares, operator.mul))


@dataclass(slots=True, kw_only=True)
class _Point:
    count: float
    seconds: float
    num_measured: int = 1


@dataclass(slots=True)
class Curve:
    """Seconds as a function of a count, tracked in classes a factor of two wide."""

    points: dict[int, _Point] = field(default_factory=dict)

    def add(self, count: int, seconds: float) -> None:
        point = self.points.get(count.bit_length())
        if point is None:
            self.points[count.bit_length()] = _Point(count=count, seconds=seconds)
            return
        point.num_measured += 1
        cold = point.num_measured <= _NUM_COLD
        weight = (1.0 if cold else _FALL) if seconds < point.seconds else (0.0 if cold else _RISE)
        point.count += weight * (count - point.count)
        point.seconds += weight * (seconds - point.seconds)

    def knows(self, count: int) -> bool:
        """Whether the count's class was measured with warm caches."""
        point = self.points.get(count.bit_length())
        return point is not None and point.num_measured >= _NUM_COLD

    def at(self, count: int) -> float:
        """Interpolated between classes; outside of them as the nearest; 0 where nothing was measured."""
        below = above = None
        for point in self.points.values():
            if point.count <= count and (below is None or point.count > below.count):
                below = point
            if point.count >= count and (above is None or point.count < above.count):
                above = point
        if below is None or above is None:
            nearest = below or above
            return nearest.seconds if nearest else 0.0
        gap = above.count - below.count
        share = (count - below.count) / gap if gap else 0.0
        return below.seconds + share * (above.seconds - below.seconds)


class DepthPolicy:
    """``num_drafts`` is the deepest; ``fixed`` chains as many for every request that may."""

    def __init__(self, num_drafts: int, *, fixed: bool) -> None:
        self.num_drafts = num_drafts
        self._fixed = fixed
        self._all = Acceptance.unknown(num_drafts)
        self._target = Curve()
        self._module = Curve()
        self._gap_s: float | None = None
        self._probe_s = 0.0

    def newcomer(self) -> Acceptance:
        """The acceptance of a request of which nothing is known."""
        return Acceptance.unknown(self.num_drafts)

    def judge(self, request: Acceptance, fates: Sequence[bool]) -> None:
        """Of a request's verified drafts, up to the first that was rejected, whether each was accepted."""
        request.add(fates, _DECAY)
        self._all.add(fates, _ALL_DECAY)

    def time_gap(self, seconds: float) -> None:
        """So long after the last step was done, the target began with the next one."""
        usual = seconds if self._gap_s is None else self._gap_s
        weight = _FALL if seconds < usual else _RISE
        self._gap_s = usual + weight * (min(seconds, _MAX_GAP_RISE * usual) - usual)

    def time_target(self, num_rows: int, seconds: float) -> None:
        """A forward pass of the target took ``seconds`` for ``num_rows`` tokens."""
        self._target.add(num_rows, seconds)

    def time_module(self, num_requests: int, seconds: float) -> None:
        """A module took ``seconds``, its draw included, for the drafts of ``num_requests``."""
        self._module.add(num_requests, seconds)

    def choose(self, requests: Sequence[Acceptance], limits: Sequence[int]) -> list[int]:
        """Drafts for each request, at most its limit. What was never measured is tried first."""
        if self._fixed or not any(limits):
            return list(limits)
        if not self._target.knows(len(requests)):
            return [0] * len(requests)
        if not (self._target.knows(len(requests) + sum(limits)) and self._module.knows(sum(map(bool, limits)))):
            return list(limits)
        usual = self._all.usual()
        depths = self._best([request.chances(usual, limit) for request, limit in zip(requests, limits, strict=True)])
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

        What a token costs on its own, its draw above all, changes nothing of that.
        """
        num_requests, num_all = len(chances), sum(map(len, chances))
        row_s = max(0.0, self._target.at(num_requests + num_all) - self._target.at(num_requests)) / num_all
        depths = [0] * num_requests
        for _ in range(3):
            tokens = num_requests + sum(sum(chance[:depth]) for chance, depth in zip(chances, depths, strict=True))
            better = self._paying(chances, tokens / self._seconds(depths), row_s)
            if better == depths:
                break
            depths = better
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
        """From the end of one step to that of the next, which verifies and drafts so many."""
        modules = sum(self._module.at(sum(depth > index for depth in depths)) for index in range(max(depths)))
        return (self._gap_s or 0.0) + self._target.at(len(depths) + sum(depths)) + modules
