"""However a call ends, both sides learn of it, over TCP, a unix socket and inside the process."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest

from augury import rpc
from augury.v1 import kvcache_pb2 as pb
from augury.v1 import kvcache_pb2_grpc as pb_grpc
from tests.rpc.serving import ENDED, echo, failure, proposals, seen, servicer, serving


class Witness:
    """A handler that waits for ever once it has answered the first message, and says what became of it."""

    def __init__(self) -> None:
        self.started, self.cancelled, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def step(self, requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        context.add_done_callback(lambda _: self.done.set())
        async for proposal in requests:
            yield pb.Grant(seq=proposal.seq)
            await self.inspect(None, context)

    async def inspect(self, request: Any, context: Any) -> pb.Inspection:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return pb.Inspection()


async def test_cancelling_a_stream_cancels_its_handler(address: str) -> None:
    witness = Witness()
    async with serving(address, servicer(witness.step)) as (stub, _):
        call = stub.Step()
        await call.write(pb.Proposal(seq=4))
        assert (await call.read()).seq == 4
        await seen(witness.started)
        assert call.cancel()
        await seen(witness.cancelled)
        await seen(witness.done)
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        assert call.cancelled() and await call.code() is grpc.StatusCode.CANCELLED


async def test_a_cancelled_stream_delivers_nothing_that_waited(address: str) -> None:
    sent = asyncio.Event()

    async def step(requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        for seq in range(5):
            yield pb.Grant(seq=seq)
        sent.set()
        await asyncio.Event().wait()

    async with serving(address, servicer(step)) as (stub, _):
        call = stub.Step()
        assert (await call.read()).seq == 0
        await seen(sent)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()


async def test_cancelling_the_task_that_waits_cancels_call_and_handler(address: str) -> None:
    for method in ("unary", "stream"):
        witness, waiting = Witness(), asyncio.Event()
        async with serving(address, servicer(witness.step, witness.inspect)) as (stub, _):

            async def wait(method: str = method, stub: Any = stub, waiting: asyncio.Event = waiting) -> None:
                if method == "unary":
                    waiting.set()
                    await stub.Inspect(pb.InspectRequest())
                async for _ in stub.Step(proposals(2)):
                    waiting.set()

            task = asyncio.create_task(wait())
            await seen(witness.started)
            await seen(waiting)
            await asyncio.sleep(0)  # a task cancelled between two reads, not in one, leaves the call to the collector
            task.cancel()
            await seen(witness.cancelled)
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_deadline_ends_call_and_handler(address: str) -> None:
    witness = Witness()
    async with serving(address, servicer(inspect=witness.inspect)) as (stub, _):
        error = await failure(stub.Inspect(pb.InspectRequest(), timeout=0.2))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await seen(witness.cancelled)


async def test_a_request_iterator_that_fails_cancels_the_call(address: str) -> None:
    async def broken() -> AsyncIterator[pb.Proposal]:
        yield pb.Proposal()
        raise ConnectionError("source lost")

    witness = Witness()
    async with serving(address, servicer(witness.step)) as (stub, _):
        call = stub.Step(broken())
        with pytest.raises(asyncio.CancelledError):
            [grant async for grant in call]
        await seen(witness.done)


async def test_stopping_the_server_breaks_open_calls(address: str) -> None:
    witness = Witness()
    async with serving(address, servicer(witness.step)) as (stub, listener):
        call = stub.Step()
        await call.write(pb.Proposal())
        await call.read()
        await seen(witness.started)
        await listener.stop(0)
        assert (await failure(call.read())).code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(ENDED):
            await call.write(pb.Proposal())
        await seen(witness.cancelled)


async def test_a_call_may_finish_within_the_grace_of_a_stop(address: str) -> None:
    go = asyncio.Event()

    async def inspect(request: Any, context: Any) -> pb.Inspection:
        started.set()
        await go.wait()
        return pb.Inspection(registry="finished")

    started = asyncio.Event()
    async with serving(address, servicer(inspect=inspect)) as (stub, listener):
        call = stub.Inspect(pb.InspectRequest())
        await seen(started)
        stopping = asyncio.create_task(listener.stop(10))
        await asyncio.sleep(0.05)
        assert (await failure(stub.Inspect(pb.InspectRequest()))).code() is grpc.StatusCode.UNAVAILABLE
        go.set()
        assert (await call).registry == "finished"
        await stopping


async def test_a_channel_made_before_its_server_works_once_there_is_one(address: str) -> None:
    echoing = servicer(step=echo)
    async with serving(address, echoing) as (_, listener):
        target = listener.address
    channel = rpc.connect(target)
    stub = pb_grpc.KVCacheStub(channel)
    for _ in range(2):
        assert (await failure(stub.Step().read())).code() is grpc.StatusCode.UNAVAILABLE
        async with serving(target, echoing):
            await asyncio.wait_for(until_it_answers(stub), 10)
    await channel.close()


async def until_it_answers(stub: Any) -> None:
    while True:
        try:
            assert [grant.seq async for grant in stub.Step(proposals(2))] == [0, 1]
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(0.05)
        else:
            return


async def test_closing_the_channel_cancels_its_calls(address: str) -> None:
    witness = Witness()
    listener = await rpc.listen(address, partial(pb_grpc.add_KVCacheServicer_to_server, servicer(witness.step)))
    channel = rpc.connect(listener.address)
    call = pb_grpc.KVCacheStub(channel).Step()
    await call.write(pb.Proposal())
    await call.read()
    await channel.close()
    await seen(witness.done)
    assert call.cancelled()
    await listener.stop(0)
