"""The loop of one worker against the real KV service, which dies and comes back without memory."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest

from augury import convert, rpc
from augury.types import Delta, Outcome, PoolSpec, Step
from augury.v1 import worker_pb2
from augury.v1.kvcache_pb2_grpc import add_KVCacheServicer_to_server
from augury.v1.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
from kvcache_svc.registry import MemoryRegistry
from kvcache_svc.service import KVCacheService
from scheduler_svc.clients import KvClient, WorkerClient
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.loop import LaneLoop
from tests.rpc import virtual_time
from tests.scheduler.harness import Worker, continuation, generation, lane_config

CONFIG = lane_config(budget=12)
SPEC = PoolSpec(pool="w", incarnation="i", fingerprint="f", epoch=0, num_blocks=CONFIG.num_blocks, groups=CONFIG.groups)
PROMPT, NUM_TOKENS = range(19), 30
STEP_SECONDS = 0.01


class Served(WorkerServicer):
    """The harness's worker behind gRPC. A new epoch begins with nothing held."""

    def __init__(self) -> None:
        self.worker = Worker(CONFIG)
        self.steps: list[Step] = []

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.Step], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[worker_pb2.Outcome]:
        async for request in request_iterator:
            await asyncio.sleep(STEP_SECONDS)
            yield convert.outcome_to_wire(self._run(convert.step_from_wire(request)))

    async def Tags(
        self, request: worker_pb2.TagsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.TagsReply:
        return convert.tags_to_wire(list(self.worker.tags.items()))

    def _run(self, step: Step) -> Outcome:
        if self.steps and step.epoch > self.steps[-1].epoch:
            self.worker.held.clear()
        self.steps.append(step)
        return self.worker.execute(step)


async def start_kvcache() -> rpc.Listener:
    return await rpc.listen("local:kv", partial(add_KVCacheServicer_to_server, KVCacheService(MemoryRegistry())))


async def play(num_steps: int, usurped_by: int | None = None) -> tuple[list[Step], list[int]]:
    """Runs one request, with another KV service from its ``num_steps``-th step on: the worker's steps, and the text.

    ``usurped_by``: somebody has opened the pool there for an epoch so many microseconds later.
    """
    served, text, done = Served(), list[int](), asyncio.Event()

    def publish(deltas: list[Delta]) -> None:
        for delta in deltas:
            text.extend(delta.tokens)
            if delta.ended:
                done.set()

    worker = await rpc.listen("local:w", partial(add_WorkerServicer_to_server, served))
    kvcache = await start_kvcache()
    channel = rpc.connect("local:kv")
    lane = Scheduler(CONFIG, epoch=0, num_available=0)
    loop = LaneLoop(lane, SPEC, KvClient(channel), WorkerClient(rpc.connect("local:w")), publish)
    await loop.open()
    lane.submit(Request(handle=1, generation=generation(PROMPT, max_tokens=NUM_TOKENS), arrival=1))
    running = asyncio.create_task(loop.run())
    await asyncio.sleep((num_steps - 0.5) * STEP_SECONDS)
    await kvcache.stop(0)
    await asyncio.sleep(10 * STEP_SECONDS)
    kvcache = await start_kvcache()
    if usurped_by is not None:
        await KvClient(channel).open_pool(replace(SPEC, epoch=lane.epoch + usurped_by))
    await done.wait()
    running.cancel()
    await loop.close()
    await kvcache.stop(0)
    await worker.stop(0)
    await channel.close()
    return served.steps, text


@pytest.mark.parametrize("num_steps", [1, 2, 3, 9])
def test_a_restarted_kv_service_takes_the_leases_over_and_nothing_is_computed_again(num_steps: int) -> None:
    steps, text = virtual_time.run(play(num_steps))
    assert tuple(text) == continuation(PROMPT, NUM_TOKENS)
    assert len({step.epoch for step in steps}) == 1
    assert sum(row.num_new for step in steps for row in step.rows) == len(PROMPT) + NUM_TOKENS - 1
    assert sum(len(step.fresh) for step in steps) == 1


@pytest.mark.parametrize("later_us", [1, 10 * 3600 * 1_000_000], ids=["just now", "by a clock ten hours ahead"])
def test_a_pool_that_has_gone_on_to_a_later_epoch_is_fenced(later_us: int) -> None:
    steps, text = virtual_time.run(play(9, usurped_by=later_us))
    assert tuple(text) == continuation(PROMPT, NUM_TOKENS)
    assert len({step.epoch for step in steps}) == 2
    assert sum(len(step.fresh) for step in steps) == 2


async def probed(tags: list[tuple[int, bytes]]) -> Scheduler:
    served = Served()
    served.worker.tags.update(tags)
    worker = await rpc.listen("local:w", partial(add_WorkerServicer_to_server, served))
    channel = rpc.connect("local:kv")
    lane = Scheduler(CONFIG, epoch=0, num_available=0)
    loop = LaneLoop(lane, SPEC, KvClient(channel), WorkerClient(rpc.connect("local:w")), lambda _: None)
    await loop.probe()
    await loop.close()
    await worker.stop(0)
    await channel.close()
    return lane


def test_a_scheduler_learns_from_a_worker_what_its_blocks_hold() -> None:
    """As after a restart of the scheduler: the lane is new, the worker is not."""
    keys = [bytes([n]) * 16 for n in range(5)]
    lane = virtual_time.run(probed(list(enumerate(keys, 1))))
    assert lane.memory.num_known(keys) == len(lane.memory) == 5
