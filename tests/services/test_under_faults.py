"""The real servicers over in-process channels on virtual time: streams break and stall, services die and come back."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from augury import rpc
from augury.errors import FencedError
from augury.exchange import Direction, Fault
from augury.types import EndReason, Generation, NewRequest, Outcome, SamplingParams, Step, StopParams, WorkerInfo
from augury.v1.kvcache_pb2_grpc import add_KVCacheServicer_to_server
from augury.v1.scheduler_pb2_grpc import add_SchedulerServicer_to_server, add_WorkersServicer_to_server
from augury.v1.worker_pb2_grpc import add_WorkerServicer_to_server
from gateway.client import SchedulerClient
from kvcache_svc.registry import MemoryRegistry
from kvcache_svc.service import KVCacheService
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.service import SchedulerService
from tests.rpc import virtual_time
from tests.sim.model import VOCAB_SIZE, Model
from tests.sim.oracle import Text, right_text
from tests.sim.shape import Memory, Shape, draw_serial_shape, draw_shape
from tests.sim.worker import Worker
from worker_svc.registration import keep_registered
from worker_svc.service import WorkerService

MAX_LEN = 48


class Reader:
    """Knows what a request must emit from what its worker is told (Authors); all requests here share one salt."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def salt(self, new: NewRequest) -> bytes:
        return b""

    def right(self, new: NewRequest) -> Text:
        prompt = new.tokens[: new.num_prompt]
        generation = Generation(request_id="", prompt=prompt, sampling=new.sampling, stopping=new.stopping)
        return right_text(generation, self._model)


class Engine:
    """The simulator's worker, whose KV shows every wrong slot; ``admitted`` are the tokens of all fresh requests."""

    def __init__(self, shape: Shape, memory: Memory, rng: random.Random) -> None:
        self.admitted: list[tuple[int, ...]] = []
        self._worker = Worker(shape, memory, rng, Reader(shape.model))

    def execute(self, step: Step) -> Outcome:
        outcome = self._worker.execute(step)
        self.admitted += [new.tokens for new in step.fresh]
        return outcome

    def tags(self) -> list[tuple[int, bytes]]:
        return list(self._worker.tags.items())


class Inline(Executor):
    """Runs at once: virtual time knows no threads."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except FencedError as error:
            future.set_exception(error)
        return future


def weather(rng: random.Random, until: float, breaks: float) -> Fault:
    """Messages are late, and with probability ``breaks`` the call breaks; fine from ``until`` on."""

    async def fault(method: str, direction: Direction, message: bytes) -> Sequence[bytes]:
        if asyncio.get_running_loop().time() < until:
            await asyncio.sleep(rng.expovariate(200))
            if rng.random() < breaks:
                raise ConnectionError
        return (message,)

    return fault


@dataclass
class System:
    """A KV service, a scheduler and workers, each of which can be stopped and started."""

    fault: Fault
    shape: Shape
    engines: list[Engine] = field(default_factory=list)
    listeners: dict[str, rpc.Listener] = field(default_factory=dict)
    registrations: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def start_kvcache(self) -> None:
        register = partial(add_KVCacheServicer_to_server, KVCacheService(MemoryRegistry()))
        self.listeners["kvcache"] = await rpc.listen("local:kvcache", register)

    async def start_scheduler(self) -> None:
        kvcache = rpc.connect("local:kvcache", self.fault)
        service = SchedulerService(self._lane_config, kvcache, lambda target: rpc.connect(target, self.fault))
        self.listeners["scheduler"] = await rpc.listen(
            "local:scheduler",
            partial(add_SchedulerServicer_to_server, service),
            partial(add_WorkersServicer_to_server, service),
        )

    async def start_worker(self, name: str, life: int) -> None:
        self.engines.append(Engine(self.shape, self._memory, random.Random(life)))
        register = partial(add_WorkerServicer_to_server, WorkerService(self.engines[-1], Inline()))
        self.listeners[name] = await rpc.listen(f"local:{name}", register)
        channel = rpc.connect("local:scheduler")
        keep = keep_registered(self._worker_info(name, life), [channel], asyncio.Event())
        self.registrations[name] = asyncio.create_task(keep)

    async def stop(self, name: str) -> None:
        if registration := self.registrations.pop(name, None):
            registration.cancel()
            await asyncio.wait([registration])
        await self.listeners.pop(name).stop(0)

    @property
    def _memory(self) -> Memory:
        return self.shape.memories[0]

    def _lane_config(self, info: WorkerInfo) -> LaneConfig:
        return self.shape.lane_config(self._memory, info.worker_id)

    def _worker_info(self, name: str, life: int) -> WorkerInfo:
        return WorkerInfo(
            worker_id=name,
            incarnation=f"{name}.{life}",
            address=f"local:{name}",
            model="hashes",
            fingerprint="hashes",
            num_blocks=self._memory.num_blocks,
            groups=self._memory.groups,
            max_model_len=self.shape.max_model_len,
            vocab_size=VOCAB_SIZE,
            num_prefill_lookahead=self.shape.speculation.num_modules,
            max_drafts=self.shape.speculation.max_drafts,
        )


def wishes(rng: random.Random, model: Model, count: int) -> dict[str, tuple[Generation, Text]]:
    """Requests whose prompts begin alike, with what they must emit."""
    written: dict[str, tuple[Generation, Text]] = {}
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(20)]
    while len(written) < count:
        own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 8))]
        generation = Generation(
            request_id=str(len(written)),
            prompt=(*shared[: rng.randrange(21)], *own),
            sampling=SamplingParams(seed=rng.randrange(2)),
            stopping=StopParams(max_tokens=rng.randrange(1, 20)),
        )
        text = right_text(generation, model)
        if text.reason is not EndReason.FAILED:
            written[generation.request_id] = generation, text
    return written


async def read(client: SchedulerClient, generation: Generation, delay: float) -> list[int]:
    await asyncio.sleep(delay)
    return [token async for delta in client.generate(generation) for token in delta.tokens]


async def disturb(system: System, rng: random.Random, until: float) -> None:
    """Kill and restart the KV service and the workers, until ``until``."""
    loop, life = asyncio.get_running_loop(), 0
    while loop.time() < until:
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        life += 1
        name = rng.choice(["kvcache", "worker-0", "worker-1"])
        await system.stop(name)
        await asyncio.sleep(rng.uniform(0, 0.3))
        await (system.start_kvcache() if name == "kvcache" else system.start_worker(name, life))


@asynccontextmanager
async def serving(shape: Shape, fault: Fault) -> AsyncIterator[tuple[System, SchedulerClient]]:
    """All services with two workers, stopped in the end."""
    system = System(fault=fault, shape=shape)
    await system.start_kvcache()
    await system.start_scheduler()
    for name in ("worker-0", "worker-1"):
        await system.start_worker(name, life=0)
    client = SchedulerClient(rpc.connect("local:scheduler"))
    yield system, client
    await client.close()
    for name in list(system.listeners):
        await system.stop(name)


async def play(seed: int) -> None:
    rng = random.Random(seed)
    until = rng.uniform(0, 4)
    shape = draw_shape(rng, MAX_LEN)
    asked = wishes(rng, shape.model, 12)
    async with serving(shape, weather(random.Random(seed + 1), until, breaks=0.03)) as (system, client):
        disturbing = asyncio.create_task(disturb(system, rng, until))
        reads = [read(client, generation, rng.uniform(0, 3)) for generation, _ in asked.values()]
        texts = await asyncio.gather(*reads)
        await disturbing
    for got, (generation, right) in zip(texts, asked.values(), strict=True):
        assert tuple(got) == right.tokens, f"request {generation.request_id}"


async def restart_kvcache(seed: int) -> None:
    """With room for all, so that nothing but the restarts could make a request start over."""
    rng = random.Random(seed)
    shape = draw_serial_shape(rng, MAX_LEN, 12)
    asked = wishes(rng, shape.model, 12)
    async with serving(shape, weather(random.Random(seed + 1), until=60.0, breaks=0.0)) as (system, client):
        reads = [asyncio.create_task(read(client, generation, 0.0)) for generation, _ in asked.values()]
        for _ in range(3):
            await asyncio.sleep(0.05)
            await system.stop("kvcache")
            await asyncio.sleep(rng.uniform(0.0, 0.1))
            await system.start_kvcache()
        await asyncio.gather(*reads)
    admitted = [tokens for engine in system.engines for tokens in engine.admitted]
    assert sorted(admitted) == sorted(generation.prompt for generation, _ in asked.values())


@pytest.mark.parametrize("seed", range(25))
def test_no_text_changes_and_no_request_fails(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    virtual_time.run(play(seed))
    assert "a handler failed" not in caplog.messages


@pytest.mark.parametrize("seed", range(5))
def test_kvcache_restarts_and_every_request_keeps_what_it_computed(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    virtual_time.run(restart_kvcache(seed))
    assert "pool renewed" in caplog.messages
    assert not {"fenced", "a handler failed"} & {*caplog.messages}
