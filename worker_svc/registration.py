"""Keeps the worker registered with its scheduler, across every death of the scheduler."""

import asyncio
import logging
from typing import Any

import grpc

from augury import convert, limits
from augury.types import WorkerInfo
from augury.v1 import scheduler_pb2
from augury.v1.scheduler_pb2_grpc import WorkersStub

_log = logging.getLogger(__name__)

Call = grpc.aio.StreamStreamCall[scheduler_pb2.WorkerReport, Any]


async def keep_registered(info: WorkerInfo, channel: grpc.aio.Channel, registered: asyncio.Event) -> None:
    """Register, hold the stream open with heartbeats, and begin again whenever it breaks; for ever.

    ``registered`` is set while the scheduler knows the worker.
    """
    stub = WorkersStub(channel)
    first, longest = limits.CONNECT_RETRY_SECONDS
    pause = first
    while True:
        call = stub.Register()
        try:
            await call.write(scheduler_pb2.WorkerReport(hello=convert.hello_to_wire(info)))
            if await call.read() is not grpc.aio.EOF:
                registered.set()
                pause = first
                await _hold(call)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            _log.warning("not registered", extra={"worker": info.worker_id, "error": _reason(error)})
        finally:
            registered.clear()
            call.cancel()
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _hold(call: Call) -> None:
    pulse = asyncio.create_task(_beat(call))
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    finally:
        pulse.cancel()


async def _beat(call: Call) -> None:
    while not call.done():
        await asyncio.sleep(limits.HEARTBEAT_SECONDS)
        await call.write(scheduler_pb2.WorkerReport(heartbeat=scheduler_pb2.Heartbeat()))


def _reason(error: Exception) -> str:
    return error.details() or error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
