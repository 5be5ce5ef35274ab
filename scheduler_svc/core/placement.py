"""Which lane a request goes to: the one where it costs least, in tokens."""

from collections.abc import Sequence

from scheduler_svc.core import room
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler

DECODE_TOKENS = 64
"""The price of a neighbour. Each iteration that a request shares with another one computes a token more, for as long as
both generate; who is met somewhere in an answer of 128 tokens, a usual length, has half of it before it."""


class Placement:
    """Chooses lanes. Equal ones get requests in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, lanes: Sequence[Scheduler], request: Request) -> Scheduler:
        """The cheapest of ``lanes`` that can hold the request; the cheapest where none can. Leaves the request's keys
        as some lane names them.
        """
        self._turn += 1
        prefixes: dict[str, tuple[int, list[bytes]]] = {}
        ranks = []
        for index, lane in enumerate(lanes):
            prefix = prefixes.get(lane.names.domain)
            if prefix is None:
                prefix = prefixes[lane.names.domain] = lane.names.prefix(request)
            block_size, keys = prefix
            num_cached = lane.memory.num_known(keys) * block_size
            turn = (index + self._turn) % len(lanes)
            ranks.append((cost(lane, request, num_cached), lane.num_requests, turn, index))
        ranks.sort()
        ranked = [lanes[index] for *_, index in ranks]
        return next((lane for lane in ranked if room.fits(lane.config, request)), ranked[0])


def cost(lane: Scheduler, request: Request, num_cached: int) -> int:
    """What a request costs at a lane that holds ``num_cached`` of its tokens, in tokens::

        known - cached        what the lane has to compute for it
        + queued              what is known and not computed of those who are there already
        + DECODE_TOKENS n     their n answers, which share the iterations with its own
        + missing             slots that no free or cached block is there for: others must give them up, or it waits

    Those that wait are priced like those that decode: they will, before it does. So the requests of one prefix do not
    all go to the lane that has it: it costs as much as others once it has as many tokens to do as the prefix is long.
    """
    queued = lane.queue_tokens + DECODE_TOKENS * lane.num_requests
    return len(request.tokens) - num_cached + queued + _missing(lane, request, num_cached)


def _missing(lane: Scheduler, request: Request, num_cached: int) -> int:
    needed = room.entry(lane.config, request, num_cached)
    if needed <= lane.num_available:
        return 0
    whole = room.entry(lane.config, request, 0)
    return (needed - lane.num_available) * room.num_slots(lane.config, request) // whole
