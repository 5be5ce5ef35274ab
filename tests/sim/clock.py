"""Virtual time."""

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    """Runs actions in the order of their times, in seconds; equal times in the order of their scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._ties = count()

    def after(self, delay: float, action: Action) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._ties), action))

    def run(self, deadline: float, done: Callable[[], bool]) -> None:
        """Act until ``done`` or the ``deadline``, whichever comes first."""
        while self._heap and self._heap[0][0] <= deadline and not done():
            self.now, _, action = heapq.heappop(self._heap)
            self.num_events += 1
            action()
        if not done():
            self.now = deadline
