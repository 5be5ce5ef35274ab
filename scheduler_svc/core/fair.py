"""A queue in which clients get equal shares of a lane's tokens, whatever they send.

It is the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): next is a
request of the client that was served least, and a client that had nothing in the queue is lifted to the least of those
that have, so that idling earns nothing. While two clients both have requests in the queue, what they are served differs
by at most 2 max(L, w M): L tokens of the longest prompt, M of the pool, w = GENERATED_WEIGHT.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from scheduler_svc.core.accounts import Account
from scheduler_svc.core.request import Request

PRIORITY_STEP_TOKENS = 2048
"""One step of priority lets a request overtake those of its client that it came so many served tokens after. A few
answers' worth, so that a step matters within a queue and yet what is overtaken comes soon."""

MAX_STEPS = 16
"""Further steps of priority, up or down, make no difference: an upper bound of how long a request is overtaken."""


class FairQueue:
    """Waiting requests, iterated over in the order in which they are to be admitted, lazily.

    Within one client a request's place is what its client was served when it came, plus its priority in steps: it is
    overtaken only by requests that come before its client was served 2 MAX_STEPS PRIORITY_STEP_TOKENS more. It keeps
    the place when it is preempted. Once a request was first in the order it stays so until it leaves the queue, or one
    of its client comes back to a place before it.
    """

    def __init__(self) -> None:
        self._accounts: dict[bytes | None, Account] = {}
        self._lines: dict[Account, list[Request]] = {}
        self._last: Account | None = None
        self._head: Request | None = None
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Request]:
        """In order, as it will be if those before are admitted and their prompts computed. Fixes the first."""
        if self._lines:
            self._head = self._first()
            yield from self._in_order(self._head)

    @property
    def items(self) -> list[Request]:
        """All, in order."""
        return list(self._in_order(self._first())) if self._lines else []

    def add(self, request: Request) -> None:
        """Also of one that was running here. Its account is this queue's from now on."""
        account = self._enter(request)
        if account not in self._lines:
            account.served = max(account.served, self._level)
            self._lines[account] = []
        head = self._head
        if request.place is None:
            steps = min(max(request.generation.priority, -MAX_STEPS), MAX_STEPS)
            request.place = account.served + steps * PRIORITY_STEP_TOKENS
        elif head is not None and head.account is account and _rank(request) < _rank(head):
            self._head = request
        insort(self._lines[account], request, key=_rank)
        self._num_waiting += 1

    def remove(self, request: Request) -> None:
        line = self._lines[request.account]
        index = bisect_left(line, _rank(request), key=_rank)
        assert line[index] is request
        del line[index]
        if not line:
            del self._lines[request.account]
            self._last = request.account
        if request is self._head:
            self._head = None
        self._num_waiting -= 1

    def take_all(self) -> list[Request]:
        """Empty the queue, in order, and forget all accounts."""
        items = self.items
        self._accounts, self._lines, self._last, self._head, self._num_waiting = {}, {}, None, None, 0
        return items

    @property
    def _level(self) -> int:
        """The least account of those who wait; where nobody does, that of the last who did."""
        if self._lines:
            return min(account.served for account in self._lines)
        return self._last.served if self._last else 0

    def _enter(self, request: Request) -> Account:
        client = request.generation.client
        if client not in self._accounts:
            self._drop_idle()
            self._accounts[client] = Account()
        account = self._accounts[client]
        if request.account is not account:
            request.account, request.place = account, None
            account.num_requests += 1
        return account

    def _drop_idle(self) -> None:
        """Forget clients without requests whom the level has reached: they would begin there anyway."""
        level = self._level
        self._accounts = {
            client: account
            for client, account in self._accounts.items()
            if account.num_requests or account.served > level
        }

    def _first(self) -> Request:
        if self._head is not None:
            return self._head
        account = min(self._lines, key=lambda account: (account.served, self._lines[account][0].arrival))
        return self._lines[account][0]

    def _in_order(self, head: Request) -> Iterator[Request]:
        yield head
        heap = []
        for account, line in self._lines.items():
            others = (request for request in line if request is not head)
            served = account.served + (head.unpaid if head.account is account else 0)
            for request in others:
                heap.append((served, request.arrival, request, others))
                break
        heapify(heap)
        while heap:
            served, _, request, others = heap[0]
            yield request
            following = next(others, None)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (served + request.unpaid, following.arrival, following, others))


def _rank(request: Request) -> tuple[int, int]:
    assert request.place is not None
    return request.place, request.arrival
