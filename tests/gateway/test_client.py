"""One stream carries all requests to a real gRPC server; each gets its own tokens, and all learn when it breaks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from augury import limits, rpc
from augury.errors import NoWorkerError, OverloadedError
from augury.types import Delta, Ended, EndReason, Generation, SamplingParams, StopParams
from augury.v1 import scheduler_pb2 as pb
from gateway.backend import num_ready_workers, num_running, num_waiting
from gateway.client import SchedulerClient
from tests.gateway.scheduler import Scheduler, serving

STOP = Ended(reason=EndReason.STOP)


def wish(name: str) -> Generation:
    return Generation(
        request_id=name, prompt=(1, 2), sampling=SamplingParams(seed=2**64 - 1), stopping=StopParams(max_tokens=9)
    )


async def collect(client: SchedulerClient, name: str) -> list[Delta]:
    return [delta async for delta in client.generate(wish(name))]


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[SchedulerClient]:
    channel = rpc.connect(address)
    client = SchedulerClient(channel)
    try:
        yield client
    finally:
        await client.close()
        await channel.close()


@pytest.fixture(params=["127.0.0.1:0", "local:scheduler"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Scheduler, SchedulerClient]]:
    scheduler = Scheduler()
    async with serving(scheduler, request.param) as listener, connected(listener.address) as client:
        yield scheduler, client


Pair = tuple[Scheduler, SchedulerClient]


async def test_requests_share_one_stream_and_get_their_own_tokens(pair: Pair) -> None:
    scheduler, client = pair
    names = [f"r{i}" for i in range(20)]
    tasks = [asyncio.create_task(collect(client, name)) for name in names]
    await scheduler.until(lambda: len(scheduler.submitted) == 20)
    assert {asked.request_id: asked for asked in scheduler.submitted.values()} == {name: wish(name) for name in names}
    tickets = {name: scheduler.ticket(name) for name in names}
    scheduler.say(*(Delta(ticket=ticket, tokens=(ticket, 50)) for ticket in tickets.values()))
    scheduler.say(*(Delta(ticket=ticket, tokens=(51,), ended=STOP) for ticket in tickets.values()))
    for name, deltas in zip(names, await asyncio.gather(*tasks), strict=True):
        assert [token for delta in deltas for token in delta.tokens] == [tickets[name], 50, 51]
        assert [delta.ended for delta in deltas] == [None] * (len(deltas) - 1) + [STOP]
    assert scheduler.num_streams == 1
    assert scheduler.cancelled == []


async def test_what_waits_for_a_slow_reader_comes_as_one_delta(pair: Pair) -> None:
    scheduler, client = pair
    async with aclosing(client.generate(wish("slow"))) as deltas:
        first = asyncio.create_task(anext(deltas))
        await scheduler.until(lambda: len(scheduler.submitted) == 1)
        ticket = scheduler.ticket("slow")
        scheduler.say(Delta(ticket=ticket, tokens=(1,)))
        assert (await first).tokens == (1,)
        other = asyncio.create_task(collect(client, "other"))
        await scheduler.until(lambda: len(scheduler.submitted) == 2)
        scheduler.say(Delta(ticket=ticket, tokens=(2, 3), num_cached=7, num_drafts=2, num_accepted=1))
        scheduler.say(Delta(ticket=ticket, tokens=(4,), num_cached=5, num_drafts=3, waited_ms=8, ended=STOP))
        scheduler.say(Delta(ticket=scheduler.ticket("other"), ended=STOP))
        await other
        assert await anext(deltas) == Delta(
            ticket=ticket, tokens=(2, 3, 4), num_cached=5, num_drafts=5, num_accepted=1, waited_ms=8, ended=STOP
        )


async def test_leaving_cancels_once_and_late_tokens_are_dropped(pair: Pair) -> None:
    scheduler, client = pair
    task = asyncio.create_task(collect(client, "leaver"))
    await scheduler.until(lambda: len(scheduler.submitted) == 1)
    task.cancel()
    await scheduler.until(lambda: bool(scheduler.cancelled))
    ticket = scheduler.ticket("leaver")
    scheduler.say(Delta(ticket=ticket, tokens=(9,), ended=Ended(reason=EndReason.CANCELLED)))
    other = asyncio.create_task(collect(client, "stayer"))
    await scheduler.until(lambda: len(scheduler.submitted) == 2)
    scheduler.say(Delta(ticket=scheduler.ticket("stayer"), tokens=(7,), ended=STOP))
    assert [delta.tokens for delta in await other] == [(7,)]
    assert scheduler.cancelled == [ticket]


async def test_a_broken_stream_fails_its_requests_and_the_next_opens_a_new_one(pair: Pair) -> None:
    scheduler, client = pair
    tasks = [asyncio.create_task(collect(client, name)) for name in ("a", "b")]
    await scheduler.until(lambda: len(scheduler.submitted) == 2)
    scheduler.outbox.put_nowait(None)
    for task in tasks:
        with pytest.raises(NoWorkerError):
            await task
    again = asyncio.create_task(collect(client, "c"))
    await scheduler.until(lambda: len(scheduler.submitted) == 3)
    scheduler.say(Delta(ticket=scheduler.ticket("c"), ended=STOP))
    await again
    assert scheduler.num_streams == 2


async def test_tokens_that_came_before_the_break_are_still_read(pair: Pair) -> None:
    scheduler, client = pair
    async with aclosing(client.generate(wish("a"))) as deltas:
        first = asyncio.create_task(anext(deltas))
        await scheduler.until(lambda: len(scheduler.submitted) == 1)
        scheduler.say(Delta(ticket=scheduler.ticket("a"), tokens=(1,)))
        await first
        scheduler.say(Delta(ticket=scheduler.ticket("a"), tokens=(2,)))
        scheduler.outbox.put_nowait(None)
        with pytest.raises(NoWorkerError):
            await collect(client, "b")
        assert (await anext(deltas)).tokens == (2,)
        with pytest.raises(NoWorkerError):
            await anext(deltas)


async def test_a_message_that_cannot_be_read_breaks_the_stream(pair: Pair) -> None:
    scheduler, client = pair
    task = asyncio.create_task(collect(client, "a"))
    await scheduler.until(lambda: len(scheduler.submitted) == 1)
    scheduler.outbox.put_nowait(pb.ServerMessage(tickets=b"odd"))
    with pytest.raises(NoWorkerError):
        await task


async def test_the_scheduler_comes_back_after_a_restart() -> None:
    async with serving(Scheduler(), "127.0.0.1:0") as listener, connected(listener.address) as client:
        task = asyncio.create_task(collect(client, "a"))
        await client.describe()
        await listener.stop(0)
        with pytest.raises(NoWorkerError):
            await task
        with pytest.raises(NoWorkerError):
            await client.describe()
        second = Scheduler()
        async with serving(second, listener.address), asyncio.timeout(20):
            while not second.submitted:
                again = asyncio.create_task(collect(client, "b"))
                await asyncio.wait([again], timeout=0.2)
            second.say(Delta(ticket=second.ticket("b"), ended=STOP))
            await again


async def test_closing_fails_what_is_open_and_what_comes_later(pair: Pair) -> None:
    scheduler, client = pair
    task = asyncio.create_task(collect(client, "a"))
    await scheduler.until(lambda: len(scheduler.submitted) == 1)
    await client.close()
    for asking in (task, collect(client, "b")):
        with pytest.raises(NoWorkerError, match="shutting down"):
            await asking
    assert (len(scheduler.submitted), scheduler.num_streams) == (1, 1)


async def test_too_many_open_requests_are_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, client = pair
    monkeypatch.setattr(limits, "MAX_REQUESTS_PER_GATEWAY", 2)
    tasks = [asyncio.create_task(collect(client, name)) for name in ("a", "b")]
    await scheduler.until(lambda: len(scheduler.submitted) == 2)
    with pytest.raises(OverloadedError):
        await collect(client, "c")
    scheduler.say(*(Delta(ticket=ticket, ended=STOP) for ticket in scheduler.submitted))
    await asyncio.gather(*tasks)


async def test_the_description_sums_over_workers(pair: Pair) -> None:
    description = await pair[1].describe()
    assert (description.max_model_len, description.vocab_size) == (64, 100)
    assert (num_ready_workers(description), num_running(description), num_waiting(description)) == (1, 3, 3)
