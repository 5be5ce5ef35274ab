"""What only the in-process channel offers: virtual time, faults on demand, copies of what was sent."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury import rpc
from augury.exchange import MAX_QUEUED, Direction, Fault
from augury.v1 import kvcache_pb2 as pb
from augury.v1 import kvcache_pb2_grpc as pb_grpc
from tests.rpc import virtual_time
from tests.rpc.serving import proposals, servicer


class Echo:
    """Answers a proposal with its seq, and remembers what it was sent."""

    def __init__(self) -> None:
        self.seen: list[pb.Proposal] = []
        self.num_ended = 0

    async def inspect(self, request: Any, context: Any) -> pb.Inspection:
        return pb.Inspection(registry="memory")

    async def step(self, requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        try:
            async for proposal in requests:
                self.seen.append(proposal)
                yield pb.Grant(seq=proposal.seq)
        finally:
            self.num_ended += 1


async def listen(echo: Echo) -> rpc.Listener:
    add = partial(pb_grpc.add_KVCacheServicer_to_server, servicer(echo.step, echo.inspect))
    return await rpc.listen("local:kv", add)


async def scenario(test: Callable[[Any, Echo], Awaitable[None]], fault: Fault | None = None) -> None:
    """Run a test against an Echo."""
    echo = Echo()
    listener = await listen(echo)
    async with rpc.connect("local:kv", fault) as channel:
        await test(pb_grpc.KVCacheStub(channel), echo)
    await listener.stop(0)


def on(direction: Direction, act: Callable[[bytes], Awaitable[Sequence[bytes]]]) -> Fault:
    async def fault(method: str, way: Direction, message: bytes) -> Sequence[bytes]:
        assert method.startswith("/augury.v1.KVCache/")
        return await act(message) if way is direction else (message,)

    return fault


def test_delayed_messages_keep_their_order_and_take_virtual_time_only() -> None:
    async def hour(message: bytes) -> Sequence[bytes]:
        await asyncio.sleep(3600)
        return (message,)

    async def test(stub: Any, echo: Echo) -> None:
        assert [grant.seq async for grant in stub.Step(proposals(5))] == [0, 1, 2, 3, 4]
        assert asyncio.get_running_loop().time() == pytest.approx(5 * 3600)

    began = time.perf_counter()
    virtual_time.run(scenario(test, on(Direction.REQUEST, hour)))
    assert time.perf_counter() - began < 3600


@pytest.mark.parametrize("direction", Direction)
def test_a_lost_message_leaves_a_unary_call_to_its_deadline(direction: Direction) -> None:
    async def lose(message: bytes) -> Sequence[bytes]:
        return ()

    async def test(stub: Any, echo: Echo) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Inspect(pb.InspectRequest(), timeout=2.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert asyncio.get_running_loop().time() == pytest.approx(2.5)

    virtual_time.run(scenario(test, on(direction, lose)))


@given(copies=st.lists(st.integers(0, 2), min_size=1, max_size=2 * MAX_QUEUED), direction=st.sampled_from(Direction))
def test_a_stream_delivers_exactly_the_copies_its_fault_makes(copies: list[int], direction: Direction) -> None:
    plan = iter(copies)

    async def copy(message: bytes) -> Sequence[bytes]:
        return (message,) * next(plan)

    async def test(stub: Any, echo: Echo) -> None:
        expected = [seq for seq, count in enumerate(copies) for _ in range(count)]
        assert [grant.seq async for grant in stub.Step(proposals(len(copies)))] == expected
        assert len(echo.seen) == (len(expected) if direction is Direction.REQUEST else len(copies))

    virtual_time.run(scenario(test, on(direction, copy)))


@pytest.mark.parametrize("direction", Direction)
def test_a_broken_connection_ends_both_sides_and_the_next_call_works(direction: Direction) -> None:
    num_left = 3

    async def break_third(message: bytes) -> Sequence[bytes]:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            raise ConnectionResetError("cable cut")
        return (message,)

    async def test(stub: Any, echo: Echo) -> None:
        call = stub.Step()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            for seq in range(3):
                await call.write(pb.Proposal(seq=seq))
                assert (await call.read()).seq == seq
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.sleep(1)
        assert echo.num_ended == 1
        assert [grant.seq async for grant in stub.Step(proposals(4))] == [0, 1, 2, 3]

    virtual_time.run(scenario(test, on(direction, break_third)))


def test_the_servicer_gets_a_copy_of_what_was_sent() -> None:
    async def test(stub: Any, echo: Echo) -> None:
        call = stub.Step()
        proposal = pb.Proposal(seq=1)
        await call.write(proposal)
        proposal.seq = 2
        assert (await call.read()).seq == 1
        assert echo.seen[0] is not proposal

    virtual_time.run(scenario(test))


def test_two_event_loops_do_not_see_each_others_names() -> None:
    async def call_only() -> grpc.StatusCode:
        async with rpc.connect("local:kv") as channel:
            return await pb_grpc.KVCacheStub(channel).Inspect(pb.InspectRequest()).code()

    async def test(stub: Any, echo: Echo) -> None:
        assert await call_only() is grpc.StatusCode.OK
        assert await asyncio.to_thread(asyncio.run, call_only()) is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario(test))
