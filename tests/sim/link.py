"""A connection that loses, repeats and delays messages, both ways."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

from tests.sim.clock import Clock
from tests.sim.plan import Weather

M = TypeVar("M")

LATENCY_SECONDS = (0.0002, 0.001)
DELAY_SECONDS = 0.08


class Sky:
    """The weather over all links, and what it did."""

    def __init__(self, rng: Random, weather: Weather, tally: Counter[str]) -> None:
        self.rng = rng
        self.weather = weather
        self.tally = tally

    def copies(self) -> int:
        """How many copies of a message arrive."""
        if self._strikes("drop", self.weather.drop):
            return 0
        return 2 if self._strikes("duplicate", self.weather.duplicate) else 1

    def latency(self) -> float:
        """Seconds that one copy takes; different ones for neighbours, so that messages overtake each other."""
        extra = self.rng.uniform(0.0, DELAY_SECONDS) if self._strikes("delay", self.weather.delay) else 0.0
        return self.rng.uniform(*LATENCY_SECONDS) + extra

    def _strikes(self, kind: str, probability: float) -> bool:
        struck = self.rng.random() < probability
        self.tally[kind] += struck
        return struck


class Link:
    """One connection. When it breaks, what was under way is lost; what is sent later goes over a new one."""

    def __init__(self, clock: Clock, sky: Sky) -> None:
        self._clock = clock
        self._sky = sky
        self._connection = 0

    def send(self, message: M, deliver: Callable[[M], None]) -> None:
        connection = self._connection

        def arrive() -> None:
            if connection == self._connection:
                deliver(message)

        for _ in range(self._sky.copies()):
            self._clock.after(self._sky.latency(), arrive)

    def break_off(self) -> None:
        self._connection += 1
