"""A peer that stands still without breaking its connections."""

import asyncio
import signal

import grpc
import pytest

from augury import rpc
from augury.v1.scheduler_pb2_grpc import SchedulerStub
from deploy.chaos.process import start_service


async def test_a_stream_to_a_process_that_stands_still_breaks() -> None:
    process = start_service("scheduler_svc", {"scheduler.address": "127.0.0.1:0"})
    channel = rpc.connect(await asyncio.to_thread(process.wait_ready))
    try:
        call = SchedulerStub(channel).Generate()
        await call.wait_for_connection()
        process.popen.send_signal(signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await asyncio.wait_for(call.read(), 8)
        assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await channel.close()
        process.kill()
