"""What one scheduler leaves unfinished another goes on with, and the client notices nothing but a pause."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from augury import rpc
from augury.errors import DeadlineError, NoWorkerError
from augury.types import Delta, Ended, EndReason, Generation, SamplingParams, StopParams
from augury.v1 import scheduler_pb2 as pb
from gateway.client import SchedulerClient
from gateway.continuing import Continuing
from tests.gateway.scheduler import Scheduler, serving

STOP = Ended(reason=EndReason.STOP)
NO_WORKER = Ended(reason=EndReason.FAILED, error_code="no_worker", error_message="draining")
WISH = Generation(
    request_id="r",
    prompt=(1, 2),
    sampling=SamplingParams(seed=5),
    stopping=StopParams(max_tokens=9, stop_token_ids=frozenset({77})),
)


class Empty(Scheduler):
    """One without workers."""

    async def describe(self, request: Any, context: Any) -> pb.Description:
        return pb.Description()


class Deserted(Scheduler):
    """One whose workers are gone once it has a request."""

    async def describe(self, request: Any, context: Any) -> pb.Description:
        return pb.Description() if self.submitted else await super().describe(request, context)


@asynccontextmanager
async def backend(*addresses: str, wait_s: float = 5.0) -> AsyncIterator[Continuing]:
    channels = [rpc.connect(address) for address in addresses]
    made = Continuing([SchedulerClient(channel) for channel in channels], wait_s)
    try:
        yield made
    finally:
        await made.close()
        for channel in channels:
            await channel.close()


async def collect(source: Continuing, wish: Generation = WISH) -> list[Delta]:
    return [delta async for delta in source.generate(wish)]


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


async def asked(scheduler: Scheduler) -> tuple[int, Generation]:
    await scheduler.until(lambda: bool(scheduler.submitted))
    (only,) = scheduler.submitted.items()
    return only


async def test_another_scheduler_goes_on_where_one_dies(tmp_path: Path) -> None:
    one, other = Scheduler(), Scheduler()
    paths = [f"unix:{tmp_path}/{name}" for name in "ab"]
    async with AsyncExitStack() as undo:
        listeners = [await undo.enter_async_context(serving(s, p)) for s, p in zip((one, other), paths, strict=True)]
        source = await undo.enter_async_context(backend(*paths))
        answer = asyncio.create_task(collect(source))
        ticket, first = await asked(one)
        assert first == WISH
        one.say(Delta(ticket=ticket, tokens=(10, 11), num_cached=7))
        await asyncio.sleep(0.1)
        await listeners[0].stop(0)
        ticket, rest = await asked(other)
        assert rest == replace(WISH, emitted=(10, 11))
        other.say(Delta(ticket=ticket, tokens=(12,), num_cached=99, ended=STOP))
        deltas = await answer
        assert tokens(deltas) == [10, 11, 12] and deltas[-1].ended == STOP
        assert {delta.num_cached for delta in deltas} == {7}


async def test_the_successor_at_the_same_address_goes_on(tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/a"
    async with backend(path) as source:
        async with serving(Scheduler(), path):
            first = Scheduler()
        async with serving(first, path) as listener:
            answer = asyncio.create_task(collect(source))
            ticket, _ = await asked(first)
            first.say(Delta(ticket=ticket, tokens=(10,)))
            await asyncio.sleep(0.1)
            await listener.stop(0)
        second = Scheduler()
        async with serving(second, path):
            ticket, rest = await asked(second)
            assert rest.emitted == (10,)
            second.say(Delta(ticket=ticket, tokens=(11,), ended=STOP))
            assert tokens(await answer) == [10, 11]


@pytest.mark.parametrize(
    ("said", "reason"), [(tuple(range(9)), EndReason.LENGTH), ((1, 2, 77), EndReason.STOP)], ids=["length", "stop"]
)
async def test_where_only_the_end_was_lost_the_tokens_tell_it(
    tmp_path: Path, said: tuple[int, ...], reason: EndReason
) -> None:
    scheduler, path = Scheduler(), f"unix:{tmp_path}/a"
    async with serving(scheduler, path) as listener, backend(path) as source:
        answer = asyncio.create_task(collect(source))
        ticket, _ = await asked(scheduler)
        scheduler.say(Delta(ticket=ticket, tokens=said))
        await asyncio.sleep(0.1)
        await listener.stop(0)
        deltas = await answer
        assert tokens(deltas) == list(said)
        assert deltas[-1].ended == Ended(reason=reason)


async def test_a_scheduler_that_gives_a_request_back_is_not_the_end_of_it(tmp_path: Path) -> None:
    leaving, other = Scheduler(), Scheduler()
    paths = [f"unix:{tmp_path}/{name}" for name in "ab"]
    async with serving(leaving, paths[0]), serving(other, paths[1]), backend(*paths) as source:
        answer = asyncio.create_task(collect(source))
        ticket, _ = await asked(leaving)
        leaving.say(Delta(ticket=ticket, tokens=(3,)), Delta(ticket=ticket, ended=NO_WORKER))
        ticket, rest = await asked(other)
        assert rest.emitted == (3,)
        other.say(Delta(ticket=ticket, tokens=(4,), ended=STOP))
        assert tokens(await answer) == [3, 4]


async def test_requests_go_where_workers_are(tmp_path: Path) -> None:
    empty, full = Empty(), Scheduler()
    paths = [f"unix:{tmp_path}/{name}" for name in "ab"]
    async with serving(empty, paths[0]), serving(full, paths[1]), backend(*paths) as source:
        answers = [asyncio.create_task(collect(source, replace(WISH, request_id=str(i)))) for i in range(3)]
        await full.until(lambda: len(full.submitted) == 3)
        full.say(*(Delta(ticket=ticket, tokens=(1,), ended=STOP) for ticket in full.submitted))
        await asyncio.gather(*answers)
        assert not empty.submitted


async def test_a_scheduler_whose_workers_are_gone_is_left_for_one_that_has_some(tmp_path: Path) -> None:
    deserted, other = Deserted(), Scheduler()
    paths = [f"unix:{tmp_path}/{name}" for name in "ab"]
    async with serving(deserted, paths[0]), serving(other, paths[1]), backend(*paths) as source:
        answer = asyncio.create_task(collect(source))
        ticket, _ = await asked(deserted)
        deserted.say(Delta(ticket=ticket, tokens=(3,)))
        ticket, rest = await asked(other)
        assert rest.emitted == (3,)
        other.say(Delta(ticket=ticket, tokens=(4,), ended=STOP))
        assert tokens(await answer) == [3, 4]
        await deserted.until(lambda: len(deserted.cancelled) == 1)


async def test_nobody_takes_it_in_time(tmp_path: Path) -> None:
    async with backend(f"unix:{tmp_path}/nobody", wait_s=0.3) as source:
        with pytest.raises(NoWorkerError):
            await asyncio.wait_for(collect(source), 5)


async def test_the_time_that_passed_counts(tmp_path: Path) -> None:
    async with backend(f"unix:{tmp_path}/nobody") as source:
        with pytest.raises(DeadlineError):
            await asyncio.wait_for(collect(source, replace(WISH, timeout_s=0.3)), 5)


async def test_closing_ends_what_waits(tmp_path: Path) -> None:
    async with backend(f"unix:{tmp_path}/nobody", wait_s=60) as source:
        answer = asyncio.create_task(collect(source))
        await asyncio.sleep(0.2)
        await source.close()
        with pytest.raises(NoWorkerError):
            await asyncio.wait_for(answer, 5)


async def test_all_schedulers_are_described_as_one(tmp_path: Path) -> None:
    paths = [f"unix:{tmp_path}/{name}" for name in "abc"]
    async with serving(Scheduler(), paths[0]), serving(Scheduler(), paths[1]), backend(*paths) as source:
        whole = await source.describe()
        assert (whole.max_model_len, len(whole.workers), whole.num_parked) == (64, 4, 2)
        assert whole.flaws == ("1 of 3 schedulers do not answer",)
    async with backend(paths[2]) as source:
        with pytest.raises(NoWorkerError):
            await source.describe()
