"""Servicers put together from functions, served and called."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from augury import rpc
from augury.v1 import kvcache_pb2 as pb
from augury.v1 import kvcache_pb2_grpc as pb_grpc

ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""What writing to a call that is over raises, by whether its end was known."""


def servicer(step: Callable[..., Any] | None = None, inspect: Callable[..., Any] | None = None) -> Any:
    """A KVCache servicer with these coroutine or async generator functions as its methods."""
    base: Any = pb_grpc.KVCacheServicer
    made = base()
    for name, method in (("Step", step), ("Inspect", inspect)):
        if method is not None:
            setattr(made, name, method)
    return made


@asynccontextmanager
async def serving(address: str, served: Any) -> AsyncIterator[tuple[Any, rpc.Listener]]:
    listener = await rpc.listen(address, partial(pb_grpc.add_KVCacheServicer_to_server, served))
    channel = rpc.connect(listener.address)
    try:
        yield pb_grpc.KVCacheStub(channel), listener
    finally:
        await channel.close()
        await listener.stop(0)


async def echo(requests: AsyncIterator[pb.Proposal], context: Any) -> AsyncIterator[pb.Grant]:
    async for proposal in requests:
        yield pb.Grant(epoch=proposal.epoch, seq=proposal.seq)


async def proposals(count: int) -> AsyncIterator[pb.Proposal]:
    for seq in range(count):
        yield pb.Proposal(seq=seq)


async def failure(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, 10)
    return caught.value


async def seen(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 10)
