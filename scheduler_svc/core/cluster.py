"""All workers of one scheduler: which request runs where, and what becomes of it when a worker leaves."""

from itertools import count

from augury.errors import AuguryError, InvalidRequestError
from augury.shares import Shares
from augury.types import Delta, Ended, EndReason, Generation
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler


class Cluster:
    """Lanes (one scheduler per worker) and the requests that wait for any lane, *parked*.

    No request is placed on a lane that is *draining*.
    """

    def __init__(self, max_requests: int) -> None:
        self.lanes: dict[str, Scheduler] = {}
        self.parked: dict[int, Request] = {}
        self.draining: set[str] = set()
        self._max_requests = max_requests
        self._homes: dict[int, str] = {}
        self._shares = Shares()
        self._clients: dict[int, bytes | None] = {}
        self._placement = Placement()
        self._handles = count(1)

    @property
    def num_requests(self) -> int:
        return len(self.parked) + sum(lane.num_requests for lane in self.lanes.values())

    def submit(self, generation: Generation) -> int:
        """Accept a request and return its handle.

        Raises InvalidRequestError, ContextLengthError, OverloadedError, or RateLimitError where its client has too many
        open; then nothing has changed. Whoever is told of its end says so by ``forget``.
        """
        if not generation.prompt:
            raise InvalidRequestError("the prompt has no tokens", "prompt")
        if generation.stopping.max_tokens <= len(generation.emitted):
            raise InvalidRequestError("max_tokens leaves nothing to generate", "max_tokens")
        client = generation.client
        self._shares.check(client, self._max_requests - self.num_requests)
        handle = next(self._handles)
        self._place(Request(handle=handle, generation=generation, arrival=handle))
        self._shares.take(client)
        self._clients[handle] = client
        return handle

    def cancel(self, handle: int) -> Delta | None:
        """End a request; None where it has ended before."""
        if self.parked.pop(handle, None) is not None:
            return Delta(ticket=handle, ended=Ended(reason=EndReason.CANCELLED))
        home = self._homes.get(handle)
        return self.lanes[home].cancel(handle) if home in self.lanes else None

    def fail(self, handle: int, error: AuguryError) -> list[Delta]:
        """End a request with ``error``; empty where it has ended before."""
        if self.parked.pop(handle, None) is not None:
            return [Delta(ticket=handle, ended=failed(error))]
        home = self._homes.get(handle)
        return self.lanes[home].fail(handle, error) if home in self.lanes else []

    def drain(self, worker: str) -> None:
        """A worker wants to leave: it gets no new requests, and goes once it ``may_leave``."""
        self.draining.add(worker)

    def may_leave(self, worker: str) -> bool:
        """Whether a worker that is draining has nothing to do, or another one can go on with it."""
        if worker not in self.draining:
            return False
        lane = self.lanes.get(worker)
        return lane is None or not lane.has_work or bool(self._open_lanes())

    def has_other(self, worker: str) -> bool:
        """Whether requests of a worker could go on at another one."""
        return any(lane.config.pool != worker for lane in self._open_lanes())

    def join(self, lane: Scheduler) -> list[Delta]:
        """A worker is ready: parked requests go to it, and those of an earlier lane of its name.

        Returns the ends of those that can never fit.
        """
        earlier = self.lanes.get(lane.config.pool, lane)
        self.lanes[lane.config.pool] = lane
        moved = earlier.evacuate() if earlier is not lane else []
        parked, self.parked = list(self.parked.values()), {}
        return self._replace([*moved, *parked])

    def leave(self, worker: str) -> list[Delta]:
        """A worker is gone: its requests go on elsewhere, with the tokens they have."""
        lane = self.lanes.pop(worker, None)
        self.draining.discard(worker)
        return self._replace(lane.evacuate()) if lane else []

    def forget(self, handle: int) -> None:
        """A request has ended and was told so."""
        self._homes.pop(handle, None)
        if handle in self._clients:
            self._shares.give_back(self._clients.pop(handle))

    def _replace(self, requests: list[Request]) -> list[Delta]:
        deltas = []
        for request in requests:
            try:
                self._place(request)
            except InvalidRequestError as error:
                deltas.append(Delta(ticket=request.handle, ended=failed(error)))
        return deltas

    def _place(self, request: Request) -> None:
        """To the lane where it costs least, or to the parking place while there is none."""
        lanes = self._open_lanes()
        if not lanes:
            self.parked[request.handle] = request
            return
        lane = self._placement.choose(lanes, request)
        lane.submit(request)
        self._homes[request.handle] = lane.config.pool

    def _open_lanes(self) -> list[Scheduler]:
        return [lane for name, lane in self.lanes.items() if name not in self.draining]


def failed(error: AuguryError) -> Ended:
    """The terminal event that ``error`` means for a request."""
    return Ended(reason=EndReason.FAILED, error_code=error.code, error_message=str(error))
