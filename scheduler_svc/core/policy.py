"""The order in which requests run: earlier is served first and preempted last."""

from bisect import insort
from collections.abc import Callable, Iterator
from enum import Enum

from scheduler_svc.core.request import Request

Rank = tuple[int, int]


class Policy(Enum):
    """FAIR gives clients equal shares (fair.py); FCFS goes by arrival; PRIORITY lets smaller numbers go first, for ever
    if there are enough of them.
    """

    FAIR = "fair"
    FCFS = "fcfs"
    PRIORITY = "priority"


def rank_of(policy: Policy) -> Callable[[Request], Rank]:
    """The order of those that run, and but under FAIR of those that wait: by arrival, or under PRIORITY by number."""
    if policy is Policy.PRIORITY:
        return lambda request: (request.generation.priority, request.arrival)
    return lambda request: (0, request.arrival)


class Queue:
    """Requests in the order of a rank."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self.items: list[Request] = []
        self._rank = rank

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.items)

    def add(self, request: Request) -> None:
        insort(self.items, request, key=self._rank)

    def remove(self, request: Request) -> None:
        self.items.remove(request)

    def take_all(self) -> list[Request]:
        items, self.items = self.items, []
        return items
