"""Keeps the worker registered with its scheduler, across every death of the scheduler."""

import asyncio
import itertools
import logging
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc

from augury import convert, limits
from augury.types import WorkerInfo
from augury.v1 import scheduler_pb2
from augury.v1.scheduler_pb2_grpc import WorkersStub

_log = logging.getLogger(__name__)

Call = grpc.aio.StreamStreamCall[scheduler_pb2.WorkerReport, Any]


async def keep_registered(
    info: WorkerInfo,
    schedulers: Sequence[grpc.aio.Channel],
    registered: asyncio.Event,
    leaving: asyncio.Event | None = None,
) -> None:
    """Register, hold the stream open with heartbeats, and begin again whenever it breaks, until ``leaving`` is set.

    Each worker begins at one of the ``schedulers`` that its name picks, and goes on to the next where one fails it.
    ``registered`` is set while the scheduler knows the worker. A scheduler that knows it when it wants to leave is told
    so, and has to release it or to end first.
    """
    leaving = leaving or asyncio.Event()
    stubs = itertools.cycle(map(WorkersStub, _in_turn(schedulers, info.worker_id)))
    first, longest = limits.CONNECT_RETRY_SECONDS
    pause = first
    while not leaving.is_set():
        call = next(stubs).Register()
        try:
            await call.write(scheduler_pb2.WorkerReport(hello=convert.hello_to_wire(info)))
            if await call.read() is not grpc.aio.EOF:
                registered.set()
                pause = first
                await _hold(call, leaving)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            _log.warning("not registered", extra={"worker": info.worker_id, "error": _reason(error)})
        finally:
            registered.clear()
            call.cancel()
        await _wait(leaving, pause)
        pause = min(2 * pause, longest)


def _in_turn(schedulers: Sequence[grpc.aio.Channel], worker_id: str) -> list[grpc.aio.Channel]:
    """All of them, beginning with one that depends on the worker alone, so that workers spread.

    Those whose names count up take turns: adler32 ends in the sum of the bytes.
    """
    start = zlib.adler32(worker_id.encode()) % len(schedulers)
    return [*schedulers[start:], *schedulers[:start]]


async def _hold(call: Call, leaving: asyncio.Event) -> None:
    """Return once the stream has ended, or the worker is released."""
    reporter = asyncio.create_task(_report(call, leaving))
    try:
        while not _is_last(await call.read()):
            pass
    finally:
        reporter.cancel()


async def _report(call: Call, leaving: asyncio.Event) -> None:
    told = False
    while not call.done():
        if leaving.is_set() and not told:
            told = True
            await call.write(scheduler_pb2.WorkerReport(leaving=scheduler_pb2.Leaving()))
        await (asyncio.sleep(limits.HEARTBEAT_SECONDS) if told else _wait(leaving, limits.HEARTBEAT_SECONDS))
        await call.write(scheduler_pb2.WorkerReport(heartbeat=scheduler_pb2.Heartbeat()))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until ``event`` is set, for ``seconds`` at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _is_last(orders: Any) -> bool:
    return orders is grpc.aio.EOF or orders.released


def _reason(error: Exception) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
