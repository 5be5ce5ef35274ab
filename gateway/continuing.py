"""Several schedulers as one Backend: what one of them leaves unfinished, another one, or its successor, goes on with.

The gateway holds a request's prompt and the tokens its client has. They are all that another scheduler needs: noise is
a function of seed and position, so the text goes on as it would have.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field, replace

from augury import limits
from augury.errors import DeadlineError, NoWorkerError
from augury.types import Delta, Description, Ended, EndReason, Generation
from gateway.backend import num_ready_workers
from gateway.client import SchedulerClient

_LOOK_SECONDS = 1.0
"""For so long a scheduler is taken to be as it was seen."""

_IDLE_SECONDS = 1.0
"""A scheduler that has no workers, or does not answer, for so long loses its requests to one that has."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """A scheduler as it was last seen: workers that take requests (None: it does not answer), since when it has none,
    requests from here, and when it last left a request unfinished.

    ``leashes`` bound the waits for its next deltas.
    """

    client: SchedulerClient
    num_workers: int | None = 0
    idle_since: float | None = None
    num_open: int = 0
    failed_at: float = float("-inf")
    leashes: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def cost(self) -> tuple[bool, bool, float]:
        """Smaller is better: it is well, it has workers, and they have little to do for this gateway."""
        unwell = self.num_workers is None or time.monotonic() - self.failed_at < _LOOK_SECONDS
        return unwell, not self.num_workers, self.num_open / max(1, self.num_workers or 0)

    def saw(self, num_workers: int | None) -> None:
        self.num_workers = num_workers
        self.idle_since = None if num_workers else self.idle_since or time.monotonic()

    def leave(self) -> None:
        """Wait for nothing more that it was asked for."""
        now = asyncio.get_running_loop().time()
        for leash in self.leashes:
            leash.reschedule(now)

    async def next_delta(self, deltas: AsyncGenerator[Delta, None]) -> Delta:
        """Raises NoWorkerError where the scheduler is left."""
        leash = asyncio.timeout(None)
        try:
            async with leash:
                self.leashes.add(leash)
                return await anext(deltas)
        except TimeoutError:
            raise NoWorkerError("the scheduler has no workers, and others have") from None
        finally:
            self.leashes.discard(leash)


class Continuing:
    """As Backend. Gives a request up with NoWorkerError once nobody has taken it for ``wait_s`` seconds."""

    def __init__(self, clients: Sequence[SchedulerClient], wait_s: float) -> None:
        self._schedulers = [_Seen(client=client) for client in clients]
        self._wait_s = wait_s
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._closed = False
        self._watching: asyncio.Task[None] | None = None

    async def generate(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """As Backend.generate."""
        if self._watching is None and len(self._schedulers) > 1:
            # In a context of its own: it outlives the request that starts it, and logs for none.
            self._watching = asyncio.create_task(self._watch(), context=Context())
        story = _Story(generation)
        pause, longest = limits.CONNECT_RETRY_SECONDS
        patience = time.monotonic() + self._wait_s
        while True:
            scheduler = await self._choose()
            try:
                async with aclosing(self._part(scheduler, story)) as deltas:
                    async for delta in deltas:
                        yield delta
                        patience, pause = time.monotonic() + self._wait_s, limits.CONNECT_RETRY_SECONDS[0]
                        if delta.ended:
                            return
            except NoWorkerError:
                if self._closed or time.monotonic() >= patience:
                    raise
                scheduler.failed_at, self._looked_at = time.monotonic(), float("-inf")
            ended = story.ended
            if ended is not None:
                yield Delta(ticket=0, num_cached=story.num_cached, ended=ended)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def describe(self) -> Description:
        """All schedulers as one. Raises NoWorkerError where none answers."""
        found = [each for each in await self._look() if each is not None]
        if not found:
            raise NoWorkerError("no scheduler answers")
        silent = len(self._schedulers) - len(found)
        return Description(
            model=next((each.model for each in found if each.model), None),
            max_model_len=min((each.max_model_len for each in found if each.max_model_len), default=None),
            vocab_size=min((each.vocab_size for each in found if each.vocab_size), default=None),
            num_parked=sum(each.num_parked for each in found),
            workers=tuple(worker for each in found for worker in each.workers),
            flaws=(
                *([f"{silent} of {len(self._schedulers)} schedulers do not answer"] if silent else []),
                *dict.fromkeys(flaw for each in found for flaw in each.flaws),
            ),
        )

    async def close(self) -> None:
        """Break every stream; open requests fail, and later ones too."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(scheduler.client.close() for scheduler in self._schedulers))

    async def _part(self, scheduler: _Seen, story: "_Story") -> AsyncGenerator[Delta, None]:
        """What one scheduler says of a request. Raises NoWorkerError where it leaves it unfinished."""
        scheduler.num_open += 1
        try:
            async with aclosing(scheduler.client.generate(story.rest())) as deltas:
                ended = None
                while ended is None:
                    delta = await scheduler.next_delta(deltas)
                    ended = delta.ended
                    if ended is None or ended.error_code != NoWorkerError.code:
                        yield story.told(delta)
                        continue
                    if delta.tokens:
                        yield story.told(replace(delta, ended=None))
                    raise NoWorkerError(ended.error_message or "the scheduler gave the request back")
        finally:
            scheduler.num_open -= 1

    async def _watch(self) -> None:
        """Leave schedulers whose requests wait for a worker while others have some."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if any(scheduler.num_open for scheduler in self._schedulers):
                await self._look()
            if any(scheduler.num_workers for scheduler in self._schedulers):
                for scheduler in self._schedulers:
                    if scheduler.idle_since and time.monotonic() - scheduler.idle_since >= _IDLE_SECONDS:
                        scheduler.leave()

    async def _choose(self) -> _Seen:
        if len(self._schedulers) > 1:
            async with self._looking:
                if time.monotonic() - self._looked_at > _LOOK_SECONDS:
                    await self._look()
        return min(self._schedulers, key=lambda scheduler: scheduler.cost)

    async def _look(self) -> list[Description | None]:
        found = await asyncio.gather(*(_described(scheduler.client) for scheduler in self._schedulers))
        self._looked_at = time.monotonic()
        for scheduler, description in zip(self._schedulers, found, strict=True):
            scheduler.saw(None if description is None else num_ready_workers(description))
        return found


class _Story:
    """A request and what its client was told of it."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._began_at = time.monotonic()
        self._emitted = list(generation.emitted)
        self._first: Delta | None = None

    @property
    def num_cached(self) -> int:
        return self._first.num_cached if self._first else 0

    def rest(self) -> Generation:
        """What is still to be generated. Raises DeadlineError where there is no time for it."""
        timeout_s = self._generation.timeout_s
        if timeout_s is not None:
            timeout_s -= time.monotonic() - self._began_at
            if timeout_s <= 0:
                raise DeadlineError("the deadline of the request has passed")
        return replace(self._generation, emitted=tuple(self._emitted), timeout_s=timeout_s)

    def told(self, delta: Delta) -> Delta:
        """``delta`` as the client shall see it: what it hears of the prompt stays what it heard first."""
        if self._first is None and (delta.tokens or delta.ended):
            self._first = delta
        self._emitted.extend(delta.tokens)
        first = self._first or delta
        return replace(delta, num_cached=first.num_cached, waited_ms=first.waited_ms)

    @property
    def ended(self) -> Ended | None:
        """The end, where only the word of it was lost: the tokens tell it."""
        stopping, num_emitted = self._generation.stopping, len(self._emitted)
        if num_emitted and self._emitted[-1] in stopping.stop_token_ids and num_emitted > stopping.min_tokens:
            return Ended(reason=EndReason.STOP)
        return Ended(reason=EndReason.LENGTH) if num_emitted >= stopping.max_tokens else None


async def _described(client: SchedulerClient) -> Description | None:
    try:
        return await client.describe()
    except NoWorkerError:
        return None
