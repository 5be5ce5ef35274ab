"""Systems that are measured beside one another in one process, each standing still while another one runs."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

import uvloop

from augury import errors
from augury.config import Settings
from augury.errors import InternalError
from augury.types import EndReason, Generation, WorkerStatus
from deploy import embedded
from deploy.embedded import Embedded
from gateway.client import SchedulerClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """``cpu_s`` is the time that this process has computed, on all its threads."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Self:
        return cls(wall_s=time.perf_counter(), cpu_s=time.process_time())


Arrivals = list[tuple[Moment, int]]
"""Of one stream: when tokens came, and how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An ``amount`` of something, and what it took."""

    amount: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @classmethod
    def between(cls, amount: int, begun: Moment, ended: Moment) -> Self:
        return cls(amount=amount, wall_s=ended.wall_s - begun.wall_s, cpu_s=ended.cpu_s - begun.cpu_s)

    def __add__(self, other: "Work") -> "Work":
        return Work(
            amount=self.amount + other.amount, wall_s=self.wall_s + other.wall_s, cpu_s=self.cpu_s + other.cpu_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a system did for requests that were sent together.

    ``decoded`` are the tokens that came after every stream had its first; ``answers`` take from sending to the last
    token. The counts are WorkerStatus's.
    """

    decoded: Work = Work()
    answers: Work = Work()
    hit_tokens: int = 0
    num_drafts: int = 0
    draft_tokens: int = 0
    accepted_at: tuple[int, ...] = ()

    def __add__(self, other: "Answered") -> "Answered":
        return Answered(
            decoded=self.decoded + other.decoded,
            answers=self.answers + other.answers,
            hit_tokens=self.hit_tokens + other.hit_tokens,
            num_drafts=self.num_drafts + other.num_drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_at=_columns(self.accepted_at, other.accepted_at, sign=1),
        )


@contextmanager
def start(settings: Settings) -> Iterator["Rival"]:
    """All services behind the gateway, in an event loop that turns only while ``Rival.answer`` runs.

    Raises OSError, ValueError where they cannot start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        services, client = runner.run(_start(settings))
        try:
            yield Rival(runner, client)
        finally:
            runner.run(_stop(services, client))


async def _start(settings: Settings) -> tuple[Embedded, SchedulerClient]:
    services = await embedded.start(settings)
    await services.registered.wait()
    return services, SchedulerClient(services.channel)


async def _stop(services: Embedded, client: SchedulerClient) -> None:
    await client.close()
    await services.stop()


class Rival:
    """A system that runs, see ``start``."""

    def __init__(self, runner: asyncio.Runner, client: SchedulerClient) -> None:
        self._runner = runner
        self._client = client

    def answer(self, wishes: Sequence[Generation]) -> Answered:
        """Generate all of ``wishes`` at once. Raises the AuguryError of one that fails."""
        return self._runner.run(self._answer(wishes))

    async def _answer(self, wishes: Sequence[Generation]) -> Answered:
        before, sent = await self._worker(), Moment.now()
        streams = await asyncio.gather(*(self._stream(wish) for wish in wishes))
        after = await self._worker()
        begun = max((arrivals[0][0] for arrivals in streams), key=_wall)
        ended = max((arrivals[-1][0] for arrivals in streams), key=_wall)
        num_decoded = sum(n for arrivals in streams for moment, n in arrivals if moment.wall_s > begun.wall_s)
        return Answered(
            decoded=Work.between(num_decoded, begun, ended),
            answers=Work.between(len(wishes), sent, ended),
            hit_tokens=after.hit_tokens - before.hit_tokens,
            num_drafts=after.num_drafts - before.num_drafts,
            draft_tokens=after.draft_tokens - before.draft_tokens,
            accepted_at=_columns(after.accepted_at, before.accepted_at, sign=-1),
        )

    async def _stream(self, wish: Generation) -> Arrivals:
        arrivals: Arrivals = []
        async for delta in self._client.generate(wish):
            if delta.ended and delta.ended.reason is EndReason.FAILED:
                raise errors.from_code(delta.ended.error_code or InternalError.code, delta.ended.error_message or "")
            arrivals.append((Moment.now(), len(delta.tokens)))
        return arrivals

    async def _worker(self) -> WorkerStatus:
        (worker,) = (await self._client.describe()).workers
        return worker


def _wall(moment: Moment) -> float:
    return moment.wall_s


def _columns(left: Sequence[int], right: Sequence[int], *, sign: int) -> tuple[int, ...]:
    """``left`` plus or minus ``right``, position by position; the shorter one goes on with zeros."""
    return tuple(a + sign * b for a, b in zip_longest(left, right, fillvalue=0))
