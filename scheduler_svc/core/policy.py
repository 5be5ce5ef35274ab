"""The order in which requests run: earlier is served first and preempted last."""

from bisect import insort
from collections.abc import Callable
from enum import Enum

from scheduler_svc.core.request import Request

Rank = tuple[int, int]


class Policy(Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


def rank_of(policy: Policy) -> Callable[[Request], Rank]:
    """First come, first served; under PRIORITY a smaller priority number goes first."""
    if policy is Policy.PRIORITY:
        return lambda request: (request.generation.priority, request.arrival)
    return lambda request: (0, request.arrival)


class Queue:
    """Requests in policy order."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self.items: list[Request] = []
        self._rank = rank

    def __len__(self) -> int:
        return len(self.items)

    def add(self, request: Request) -> None:
        insort(self.items, request, key=self._rank)

    def remove(self, request: Request) -> None:
        self.items.remove(request)

    def take_all(self) -> list[Request]:
        items, self.items = self.items, []
        return items
