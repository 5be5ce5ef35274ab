"""All services in one process: the same apps and servicers, over in-process channels."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc
import msgspec

import kvcache_svc.app
import scheduler_svc.app
import worker_svc.app
from augury import rpc
from augury.config import Settings
from augury.process import Running

STOP_GRACE_S = 0.5


def local_settings(settings: Settings) -> Settings:
    """``settings`` with in-process addresses."""
    change = msgspec.structs.replace
    return change(
        settings,
        kvcache=change(settings.kvcache, address="local:kvcache"),
        scheduler=change(settings.scheduler, address="local:scheduler"),
        worker=change(settings.worker, address="local:worker", advertise=None, id=settings.worker.id or "worker-0"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """KV service, scheduler and one worker; ``channel`` leads to the scheduler."""

    channel: grpc.aio.Channel
    stack: AsyncExitStack
    registered: asyncio.Event

    async def stop(self) -> None:
        await self.stack.aclose()


async def start(settings: Settings) -> Embedded:
    """Start the three services behind the gateway, each after those it needs. Raises OSError, ValueError."""
    settings = local_settings(settings)
    async with AsyncExitStack() as stack:
        await _add(stack, await kvcache_svc.app.start(settings))
        await _add(stack, await scheduler_svc.app.start(settings))
        worker = await worker_svc.app.start(settings)
        await _add(stack, worker)
        channel = rpc.connect(settings.scheduler.address)
        stack.push_async_callback(channel.close)
        return Embedded(channel=channel, stack=stack.pop_all(), registered=worker.registered)
    raise AssertionError("unreachable")


async def _add(stack: AsyncExitStack, running: Running) -> None:
    stack.push_async_callback(running.stop, STOP_GRACE_S)
