"""One servicer behaves the same over TCP, a unix socket and inside the process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from augury import errors, limits, rpc
from augury.v1 import kvcache_pb2 as pb
from augury.v1 import kvcache_pb2_grpc as pb_grpc
from tests.rpc.serving import ENDED, echo, failure, proposals, servicer, serving


async def echo_by_read_and_write(_: Any, context: Any) -> None:
    while (proposal := await context.read()) is not grpc.aio.EOF:
        await context.write(pb.Grant(epoch=proposal.epoch, seq=proposal.seq))


async def test_a_unary_call_returns_the_reply_each_time_it_is_awaited(address: str) -> None:
    async def inspect(request: Any, context: Any) -> pb.Inspection:
        return pb.Inspection(registry="memory")

    async with serving(address, servicer(inspect=inspect)) as (stub, _):
        call = stub.Inspect(pb.InspectRequest())
        assert (await call).registry == (await call).registry == "memory"
        assert await call.code() is grpc.StatusCode.OK
        assert call.done() and not call.cancelled() and not call.cancel()


@pytest.mark.parametrize("step", [echo, echo_by_read_and_write])
async def test_a_stream_answers_every_message_in_order_then_ends(address: str, step: Callable[..., Any]) -> None:
    async with serving(address, servicer(step=step)) as (stub, _):
        iterated = [grant.seq async for grant in stub.Step(proposals(200))]
        assert iterated == list(range(200))

        call = stub.Step()
        for seq in range(3):
            await call.write(pb.Proposal(epoch=7, seq=seq))
            assert await call.read() == pb.Grant(epoch=7, seq=seq)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_the_handler_may_end_a_stream_before_its_client_does(address: str) -> None:
    async def step(requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        yield pb.Grant(seq=1)

    async with serving(address, servicer(step=step)) as (stub, _):
        call = stub.Step()
        assert [grant.seq async for grant in call] == [1]
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(pb.Proposal())


@pytest.mark.parametrize("code", errors.TABLE)
async def test_a_domain_error_crosses_with_its_code_message_and_status(address: str, code: str) -> None:
    async def inspect(request: Any, context: Any) -> pb.Inspection:
        context.set_trailing_metadata((("extra", "kept"),))
        raise errors.from_code(code, "ünfit prompt")

    async def step(requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        yield pb.Grant(seq=1)
        raise errors.from_code(code, "mid-stream")

    async def step_by_write(requests: Any, context: Any) -> None:
        raise errors.from_code(code, "mid-stream")

    async with serving(address, servicer(step, inspect)) as (stub, _):
        error = await failure(stub.Inspect(pb.InspectRequest()))
        assert error.code().name == errors.TABLE[code].grpc
        assert dict(error.trailing_metadata())["extra"] == "kept"
        domain = rpc.to_domain(error)
        assert (type(domain), str(domain)) == (type(errors.from_code(code, "")), "ünfit prompt")

        call = stub.Step()
        assert (await call.read()).seq == 1
        assert rpc.to_domain(await failure(call.read())).code == code
        with pytest.raises(ENDED):
            await call.write(pb.Proposal())
    async with serving(address, servicer(step_by_write)) as (stub, _):
        assert rpc.to_domain(await failure(stub.Step().read())).code == code


async def test_a_fault_of_ours_is_internal_logged_and_tells_no_details(address: str, caplog: Any) -> None:
    async def inspect(request: Any, context: Any) -> pb.Inspection:
        raise KeyError("a secret prompt")

    async def step(requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        yield pb.Grant(seq=1)
        raise KeyError("a secret prompt")

    async with serving(address, servicer(step, inspect)) as (stub, _):
        call = stub.Step()
        await call.read()
        for error in (await failure(stub.Inspect(pb.InspectRequest())), await failure(call.read())):
            assert error.code() is grpc.StatusCode.INTERNAL
            assert error.details() == "internal error: KeyError"
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError, KeyError]


async def test_a_long_error_message_is_cut_to_its_limit(address: str) -> None:
    async def inspect(request: Any, context: Any) -> pb.Inspection:
        raise errors.InvalidRequestError("x" * 100_000)

    async with serving(address, servicer(inspect=inspect)) as (stub, _):
        error = await failure(stub.Inspect(pb.InspectRequest()))
        assert error.details() == "x" * limits.MAX_ERROR_CHARS


async def test_a_method_the_servicer_lacks_is_unimplemented(address: str) -> None:
    async with serving(address, servicer()) as (stub, _):
        error = await failure(stub.Inspect(pb.InspectRequest()))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_handler_may_abort_with_status_and_trailing_metadata(address: str) -> None:
    async def inspect(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.DATA_LOSS, "gone", (("why", "test"),))

    async with serving(address, servicer(inspect=inspect)) as (stub, _):
        error = await failure(stub.Inspect(pb.InspectRequest()))
        assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "gone")
        assert dict(error.trailing_metadata())["why"] == "test"
        assert rpc.to_domain(error).code == "not_finite"


async def test_metadata_goes_both_ways(address: str) -> None:
    async def inspect(request: Any, context: Any) -> pb.Inspection:
        context.set_trailing_metadata((("served-by", "kv-0"),))
        return pb.Inspection(registry=dict(context.invocation_metadata())["request-id"])

    async with serving(address, servicer(inspect=inspect)) as (stub, _):
        call = stub.Inspect(pb.InspectRequest(), metadata=(("request-id", "r1"),))
        assert (await call).registry == "r1"
        assert dict(await call.trailing_metadata())["served-by"] == "kv-0"


async def test_a_writer_waits_for_a_reader_that_does_not_read(address: str) -> None:
    num_written = 0
    blob = b"x" * (256 << 10)

    async def step(requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        nonlocal num_written
        for _ in range(400):
            yield pb.Grant(blocks=blob)
            num_written += 1

    async with serving(address, servicer(step)) as (stub, _):
        call = stub.Step()
        first = await call.read()
        await asyncio.sleep(0.3)
        assert num_written < 399
        sizes = [len(first.blocks)]
        while (grant := await call.read()) is not grpc.aio.EOF:
            sizes.append(len(grant.blocks))
        assert sizes == [len(blob)] * 400


async def test_a_message_beyond_the_limit_fails_its_call_alone(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MESSAGE_BYTES", 1 << 20)

    async def step(requests: Any, context: Any) -> AsyncIterator[pb.Grant]:
        async for proposal in requests:
            yield pb.Grant(blocks=b"x" * proposal.seq)

    async with serving(address, servicer(step)) as (stub, _):

        async def ask(request: pb.Proposal) -> int:
            async def once() -> AsyncIterator[pb.Proposal]:
                yield request

            return sum([len(grant.blocks) async for grant in stub.Step(once())])

        for request in (pb.Proposal(pool="x" * (2 << 20)), pb.Proposal(seq=2 << 20)):
            error = await failure(ask(request))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await ask(pb.Proposal(seq=1 << 19)) == 1 << 19


async def test_a_client_without_limits_is_held_to_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MESSAGE_BYTES", 1 << 20)
    async with serving("127.0.0.1:0", servicer(echo)) as (_, listener):
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(listener.address, options=options) as channel:
            call = pb_grpc.KVCacheStub(channel).Step()
            await call.write(pb.Proposal(pool="x" * (2 << 20)))
            assert (await failure(call.read())).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_address_in_use_is_refused(address: str) -> None:
    if address.startswith("unix:"):
        address = "unix:/nonexistent/folder/socket"
        with pytest.raises(OSError, match="nonexistent"):
            await rpc.listen(address)
        return
    listener = await rpc.listen(address)
    with pytest.raises(OSError, match=listener.address):
        await rpc.listen(listener.address)
    await listener.stop(0)
