"""The scheduler's clock: deadlines, patience without a worker, workers that leave, hang or fall silent, its own end."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
import pytest

from augury import convert, rpc
from augury.config import SchedulerSettings
from augury.errors import NoWorkerError
from augury.types import Delta, Description, Generation, WorkerInfo
from augury.v1 import kvcache_pb2, scheduler_pb2, worker_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub, add_KVCacheServicer_to_server
from augury.v1.scheduler_pb2_grpc import (
    WorkersStub,
    add_SchedulerServicer_to_server,
    add_WorkersServicer_to_server,
)
from augury.v1.worker_pb2_grpc import add_WorkerServicer_to_server
from gateway.client import SchedulerClient
from kvcache_svc.registry import MemoryRegistry
from kvcache_svc.service import KVCacheService
from scheduler_svc.clients import KvClient, WorkerClient
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.loop import LaneLoop
from scheduler_svc.service import SchedulerService
from scheduler_svc.watch import watch
from tests.rpc import virtual_time
from tests.scheduler.harness import continuation, generation, lane_config
from tests.scheduler.test_loop import CONFIG, SPEC, STEP_SECONDS, Served, start_kvcache
from worker_svc.registration import keep_registered

SETTINGS = SchedulerSettings(silence_seconds=3, stall_seconds=20, wait_seconds=60)
PROMPT = range(19)
LONG = generation(PROMPT, max_tokens=300)


class Hanging(Served):
    """Answers no step unless ``goes_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.Step], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[worker_pb2.Outcome]:
        async for outcome in super().Execute(request_iterator, context):
            await self.goes_on.wait()
            yield outcome

    async def Tags(
        self, request: worker_pb2.TagsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.TagsReply:
        await self.goes_on.wait()
        return await super().Tags(request, context)


@dataclass
class House:
    """A scheduler, a KV service at ``listener``, and workers by name."""

    listener: rpc.Listener
    stack: AsyncExitStack
    service: SchedulerService
    client: SchedulerClient
    kvcache: Any
    workers: dict[str, Hanging] = field(default_factory=dict)
    leaving: dict[str, asyncio.Event] = field(default_factory=dict)
    registrations: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def start_worker(self, name: str) -> None:
        served = self.workers[name] = Hanging()
        listener = await rpc.listen(f"local:{name}", partial(add_WorkerServicer_to_server, served))
        self.stack.push_async_callback(listener.stop, 0)
        registered, leaving = asyncio.Event(), asyncio.Event()
        channel = rpc.connect("local:scheduler")
        task = asyncio.create_task(keep_registered(info(name), [channel], registered, leaving))
        self.stack.callback(task.cancel)
        self.registrations[name], self.leaving[name] = task, leaving
        await registered.wait()
        await asyncio.sleep(STEP_SECONDS)

    def begin(self, wanted: Generation) -> asyncio.Task[list[Delta]]:
        return asyncio.create_task(self._read(wanted))

    async def states(self) -> dict[str, tuple[bool, bool]]:
        """Each worker's name, whether it is ready, and whether it drains."""
        description: Description = await self.client.describe()
        return {worker.worker_id: (worker.ready, worker.draining) for worker in description.workers}

    async def num_leases(self) -> int:
        return sum(pool.num_leases for pool in (await self.kvcache.Inspect(kvcache_pb2.InspectRequest())).pools)

    async def _read(self, wanted: Generation) -> list[Delta]:
        return [delta async for delta in self.client.generate(wanted)]


def info(name: str) -> WorkerInfo:
    return WorkerInfo(
        worker_id=name,
        incarnation=name,
        address=f"local:{name}",
        model="m",
        fingerprint="f",
        num_blocks=129,
        groups=CONFIG.groups,
        max_model_len=CONFIG.max_model_len,
        vocab_size=1000,
    )


def config_of(worker: WorkerInfo) -> LaneConfig:
    return lane_config(pool=worker.worker_id, num_blocks=worker.num_blocks, budget=12)


def in_house(story: Callable[[House], Coroutine[Any, Any, None]]) -> None:
    """Plays ``story`` on virtual time."""

    async def play() -> None:
        async with AsyncExitStack() as stack:
            house_kv = await start_kvcache()
            stack.push_async_callback(house_kv.stop, 0)
            kvcache = rpc.connect("local:kv")
            service = SchedulerService(config_of, kvcache, rpc.connect, SETTINGS)
            listener = await rpc.listen(
                "local:scheduler",
                partial(add_SchedulerServicer_to_server, service),
                partial(add_WorkersServicer_to_server, service),
            )
            stack.push_async_callback(listener.stop, 0)
            client = SchedulerClient(rpc.connect("local:scheduler"))
            stack.push_async_callback(client.close)
            await story(House(house_kv, stack, service, client, KVCacheStub(kvcache)))

    virtual_time.run(play())


def text(deltas: list[Delta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.tokens)


def error_code(deltas: list[Delta]) -> str | None:
    ended = deltas[-1].ended
    assert ended is not None
    return ended.error_code


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_request_waits_for_a_worker_for_as_long_as_is_set_and_a_worker_that_comes_ends_the_wait() -> None:
    async def story(house: House) -> None:
        began = now()
        assert error_code(await house.begin(LONG)) == "no_worker"
        assert now() - began == pytest.approx(SETTINGS.wait_seconds, abs=0.1)
        patient = house.begin(LONG)
        await asyncio.sleep(SETTINGS.wait_seconds - 1)
        await house.start_worker("a")
        deltas = await patient
        assert text(deltas) == continuation(PROMPT, 300)
        assert now() - began > 2 * SETTINGS.wait_seconds
        assert deltas[0].waited_ms == pytest.approx(1000 * (SETTINGS.wait_seconds - 1), abs=100)

    in_house(story)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_request_whose_time_is_over_ends_and_holds_nothing(num_workers: int) -> None:
    async def story(house: House) -> None:
        for _ in range(num_workers):
            await house.start_worker("a")
        began = now()
        deltas = await house.begin(replace(LONG, timeout_s=1.0))
        assert error_code(deltas) == "deadline_exceeded"
        assert now() - began == pytest.approx(1.0, abs=0.1)
        assert bool(text(deltas)) == bool(num_workers)
        await asyncio.sleep(1)
        assert await house.num_leases() == 0
        assert error_code(await house.begin(replace(generation([1]), timeout_s=SETTINGS.wait_seconds + 9))) == (
            None if num_workers else "no_worker"
        )

    in_house(story)


def test_a_worker_that_leaves_hands_over_between_two_steps_and_is_released() -> None:
    async def story(house: House) -> None:
        await house.start_worker("a")
        reading = house.begin(LONG)
        await asyncio.sleep(1)
        house.leaving["a"].set()
        await asyncio.sleep(1)
        assert await house.states() == {"a": (False, True)}
        assert not house.registrations["a"].done()
        num_steps = len(house.workers["a"].steps)
        await house.start_worker("b")
        await asyncio.wait_for(house.registrations["a"], 1)
        assert await house.states() == {"b": (True, False)}
        assert text(await reading) == continuation(PROMPT, 300)
        assert await house.num_leases() == 0
        (fresh,) = [new for step in house.workers["b"].steps for new in step.fresh]
        assert len(fresh.tokens) > len(PROMPT) + num_steps - 5

    in_house(story)


def test_the_last_worker_finishes_what_it_has_before_it_is_released() -> None:
    async def story(house: House) -> None:
        await house.start_worker("a")
        reading = house.begin(LONG)
        await asyncio.sleep(1)
        house.leaving["a"].set()
        later = house.begin(generation([5]))
        await asyncio.wait_for(house.registrations["a"], 60)
        assert text(await asyncio.wait_for(reading, 1)) == continuation(PROMPT, 300)
        assert await house.num_leases() == 0
        assert not later.done()
        await house.start_worker("b")
        assert text(await later) == continuation([5], 4)

    in_house(story)


def test_a_scheduler_that_ends_finishes_what_it_has_and_sends_the_rest_away() -> None:
    async def story(house: House) -> None:
        await house.start_worker("a")
        reading = house.begin(LONG)
        await asyncio.sleep(1)
        drain = asyncio.create_task(house.service.drain())
        assert error_code(await house.begin(generation([5]))) == "no_worker"
        assert await house.states() == {"a": (False, True)}
        assert not drain.done()
        assert text(await reading) == continuation(PROMPT, 300)
        await asyncio.wait_for(drain, 1)
        await asyncio.sleep(0.1)
        assert await house.states() == {}

    in_house(story)


def test_a_scheduler_that_ends_gives_up_at_once_what_waits_for_a_worker() -> None:
    async def story(house: House) -> None:
        waiting = house.begin(LONG)
        await asyncio.sleep(1)
        await asyncio.wait_for(house.service.drain(), 1)
        assert error_code(await waiting) == "no_worker"
        with pytest.raises(NoWorkerError):
            async with aclosing(house.client.generate(LONG)) as deltas:
                await anext(deltas)

    in_house(story)


def test_a_worker_that_hangs_in_a_step_is_given_up_once_another_can_go_on() -> None:
    async def story(house: House) -> None:
        await house.start_worker("a")
        reading = house.begin(LONG)
        await asyncio.sleep(1)
        house.workers["a"].goes_on.clear()
        await asyncio.sleep(2 * SETTINGS.stall_seconds)
        assert await house.states() == {"a": (False, False)}
        await house.start_worker("b")
        assert text(await asyncio.wait_for(reading, 10)) == continuation(PROMPT, 300)
        assert await house.states() == {"a": (False, False), "b": (True, False)}
        house.workers["a"].goes_on.set()
        await asyncio.sleep(STEP_SECONDS)
        assert await house.states() == {"a": (True, False), "b": (True, False)}

    in_house(story)


def test_a_worker_that_hung_alone_and_goes_on_keeps_its_requests() -> None:
    async def story(house: House) -> None:
        await house.start_worker("a")
        reading = house.begin(LONG)
        await asyncio.sleep(1)
        house.workers["a"].goes_on.clear()
        await asyncio.sleep(2 * SETTINGS.stall_seconds)
        house.workers["a"].goes_on.set()
        assert text(await reading) == continuation(PROMPT, 300)
        assert sum(len(step.fresh) for step in house.workers["a"].steps) == 1
        assert await house.states() == {"a": (True, False)}

    in_house(story)


def test_a_worker_that_falls_silent_is_given_up_within_the_time_that_is_set() -> None:
    async def story(house: House) -> None:
        call = WorkersStub(rpc.connect("local:scheduler")).Register()
        await call.write(scheduler_pb2.WorkerReport(hello=convert.hello_to_wire(info("mute"))))
        assert await call.read() == scheduler_pb2.WorkerOrders(registered=True)
        began = now()
        await asyncio.sleep(STEP_SECONDS)
        assert await house.states() == {"mute": (False, False)}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert now() - began == pytest.approx(SETTINGS.silence_seconds, abs=0.5)
        assert await house.states() == {}

    in_house(story)


def test_a_kv_service_that_does_not_answer_or_has_lost_its_registry_is_a_flaw_until_it_is_well() -> None:
    class Registry(MemoryRegistry):
        status = "memory"

    async def story(house: House) -> None:
        async def flaws() -> tuple[str, ...]:
            await asyncio.sleep(1.1)
            return (await house.client.describe()).flaws

        assert await flaws() == ()
        await house.listener.stop(0)
        assert await flaws() == ("the KV service does not answer",)
        registry = Registry()
        register = partial(add_KVCacheServicer_to_server, KVCacheService(registry))
        house.listener = await rpc.listen("local:kv", register)
        assert await flaws() == ()
        registry.status = "redis (degraded)"
        assert await flaws() == ("the KV registry is degraded",)
        registry.status = "redis"
        assert await flaws() == ()

    in_house(story)


def hold_up(seconds: float) -> None:
    """Nothing else happens on the event loop meanwhile."""
    time.sleep(seconds)


async def test_a_scheduler_that_was_held_up_itself_blames_no_worker() -> None:
    channels = rpc.connect("local:kv"), rpc.connect("local:w")
    lane = Scheduler(CONFIG, epoch=0, num_available=0)
    loop = LaneLoop(lane, SPEC, KvClient(channels[0]), WorkerClient(channels[1]), lambda _: None)
    settings = SchedulerSettings(silence_seconds=0.2, stall_seconds=9)
    watching = asyncio.create_task(watch(loop, settings, lambda: True))
    await asyncio.sleep(0.1)
    for _ in range(3):
        hold_up(2 * settings.silence_seconds)
        await asyncio.sleep(0)
        loop.heard()
        await asyncio.sleep(0.05)
    assert not watching.done()
    with pytest.raises(NoWorkerError):
        await asyncio.wait_for(watching, 5)


def test_the_queue_of_a_worker_is_what_its_requests_have_yet_to_compute() -> None:
    async def story(house: House) -> None:
        await house.start_worker("a")
        house.workers["a"].goes_on.clear()
        reading = [house.begin(LONG), house.begin(generation(range(100, 107), max_tokens=300))]
        await asyncio.sleep(1)
        (worker,) = (await house.client.describe()).workers
        assert worker.queue_tokens == len(PROMPT) + 7
        house.workers["a"].goes_on.set()
        await asyncio.sleep(1)
        (worker,) = (await house.client.describe()).workers
        assert worker.queue_tokens == len(reading)
        await asyncio.gather(*reading)
        (worker,) = (await house.client.describe()).workers
        assert worker.queue_tokens == 0

    in_house(story)
