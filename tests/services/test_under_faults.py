"""The real servicers over in-process channels on virtual time: streams break and stall, services die and come back."""

import asyncio
import random
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from augury import rpc
from augury.errors import FencedError
from augury.exchange import Direction, Fault
from augury.geometry import KvGroup
from augury.types import Generation, NewRequest, Outcome, SamplingParams, Step, StopParams, WorkerInfo
from augury.v1.kvcache_pb2_grpc import add_KVCacheServicer_to_server
from augury.v1.scheduler_pb2_grpc import add_SchedulerServicer_to_server, add_WorkersServicer_to_server
from augury.v1.worker_pb2_grpc import add_WorkerServicer_to_server
from gateway.client import SchedulerClient
from kvcache_svc.registry import MemoryRegistry
from kvcache_svc.service import KVCacheService
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.service import SchedulerService
from tests.rpc import virtual_time
from worker_svc.registration import keep_registered
from worker_svc.service import WorkerService

GROUPS = [
    (KvGroup(block_size=4),),
    (KvGroup(block_size=4), KvGroup(block_size=2, window=7)),
]
VOCAB_SIZE = 1000


def next_token(tokens: Sequence[int]) -> int:
    return hash(tuple(tokens)) % VOCAB_SIZE


class TokenEngine:
    """Keeps the worker's side of the contract about epochs, sequences, tokens and tags; has no KV."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[list[int], int]] = {}
        self._tags: dict[int, bytes] = {}
        self._last: Outcome | None = None

    def tags(self) -> list[tuple[int, bytes]]:
        return list(self._tags.items())

    def execute(self, step: Step) -> Outcome:
        last = self._last
        if last is not None and (step.epoch, step.seq) == (last.epoch, last.seq):
            return last
        if last is not None and (step.epoch < last.epoch or (step.epoch == last.epoch and step.seq != last.seq + 1)):
            raise FencedError("out of order")
        if last is None or step.epoch > last.epoch:
            self._held = {}
        for handle in step.released:
            self._held.pop(handle, None)
        self._tags.update(step.sealed)
        refused = tuple(new.handle for new in step.fresh if not self._hold(new))
        for row in step.rows:
            self._claim(row.new_blocks)
        emitted = tuple(() if row.handle in refused else self._run(row.handle, row.num_new) for row in step.rows)
        num_final = tuple(self._held[row.handle][1] if row.handle in self._held else 0 for row in step.rows)
        self._last = Outcome(
            epoch=step.epoch,
            seq=step.seq,
            emitted=emitted,
            num_drafts=(0,) * len(emitted),
            num_final=num_final,
            refused=refused,
        )
        return self._last

    def _hold(self, new: NewRequest) -> bool:
        if any(self._tags.get(block) != key for block, key in new.hits):
            return False
        self._claim(new.blocks, kept={block for block, _ in new.hits})
        self._held[new.handle] = list(new.tokens), new.num_computed
        return True

    def _claim(self, tables: Sequence[Sequence[int]], kept: Collection[int] = ()) -> None:
        """The blocks have a new writer."""
        for block in {block for table in tables for block in table} - set(kept):
            self._tags.pop(block, None)

    def _run(self, handle: int, num_new: int) -> tuple[int, ...]:
        tokens, num_computed = self._held[handle]
        self._held[handle] = tokens, num_computed + num_new
        assert num_computed + num_new <= len(tokens), "asked to compute tokens that nobody knows"
        if num_computed + num_new < len(tokens):
            return ()
        tokens.append(next_token(tokens))
        return (tokens[-1],)


class Inline(Executor):
    """Runs at once: virtual time knows no threads."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except FencedError as error:
            future.set_exception(error)
        return future


def weather(rng: random.Random, until: float) -> Fault:
    """Messages are late, and now and then the call breaks; fine from ``until`` on."""

    async def fault(method: str, direction: Direction, message: bytes) -> Sequence[bytes]:
        if asyncio.get_running_loop().time() < until:
            await asyncio.sleep(rng.expovariate(200))
            if rng.random() < 0.03:
                raise ConnectionError
        return (message,)

    return fault


@dataclass
class System:
    """A KV service, a scheduler and workers, each of which can be stopped and started."""

    fault: Fault
    groups: tuple[KvGroup, ...]
    stack: AsyncExitStack
    listeners: dict[str, rpc.Listener] = field(default_factory=dict)
    registrations: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def start_kvcache(self) -> None:
        register = partial(add_KVCacheServicer_to_server, KVCacheService(MemoryRegistry()))
        self.listeners["kvcache"] = await rpc.listen("local:kvcache", register)

    async def start_scheduler(self) -> None:
        kvcache = rpc.connect("local:kvcache", self.fault)
        service = SchedulerService(lane_config, kvcache, lambda target: rpc.connect(target, self.fault))
        self.listeners["scheduler"] = await rpc.listen(
            "local:scheduler",
            partial(add_SchedulerServicer_to_server, service),
            partial(add_WorkersServicer_to_server, service),
        )

    async def start_worker(self, name: str, life: int) -> None:
        register = partial(add_WorkerServicer_to_server, WorkerService(TokenEngine(), Inline()))
        self.listeners[name] = await rpc.listen(f"local:{name}", register)
        info = replace(
            WORKER, groups=self.groups, worker_id=name, address=f"local:{name}", incarnation=f"{name}.{life}"
        )
        channel = rpc.connect("local:scheduler")
        self.registrations[name] = asyncio.create_task(keep_registered(info, channel, asyncio.Event()))

    async def stop(self, name: str) -> None:
        if registration := self.registrations.pop(name, None):
            registration.cancel()
            await asyncio.wait([registration])
        await self.listeners.pop(name).stop(0)


WORKER = WorkerInfo(
    worker_id="",
    incarnation="",
    address="",
    model="hash",
    fingerprint="hash",
    num_blocks=30,
    groups=(),
    max_model_len=100,
    vocab_size=VOCAB_SIZE,
)


def lane_config(info: WorkerInfo) -> LaneConfig:
    return LaneConfig(
        pool=info.worker_id,
        fingerprint=info.fingerprint,
        num_blocks=info.num_blocks,
        groups=info.groups,
        max_model_len=info.max_model_len,
        max_batched_tokens=16,
        max_running=4,
    )


def wish(rng: random.Random, number: int) -> Generation:
    shared = list(range(rng.randrange(0, 20)))
    return Generation(
        request_id=str(number),
        prompt=(*shared, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 12)))),
        sampling=SamplingParams(),
        stopping=StopParams(max_tokens=rng.randrange(1, 40)),
    )


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


async def play(seed: int) -> None:
    rng = random.Random(seed)
    until = rng.uniform(0, 4)
    async with AsyncExitStack() as stack:
        system = System(fault=weather(random.Random(seed + 1), until), groups=GROUPS[seed % len(GROUPS)], stack=stack)
        await system.start_kvcache()
        await system.start_scheduler()
        for name in ("worker-0", "worker-1"):
            await system.start_worker(name, life=0)
        client = SchedulerClient(rpc.connect("local:scheduler"))
        wishes = [wish(rng, number) for number in range(12)]
        disturbing = asyncio.create_task(disturb(system, rng, until))
        texts = await asyncio.gather(*(read(client, each, rng.uniform(0, 3)) for each in wishes))
        await disturbing
        for text, each in zip(texts, wishes, strict=True):
            assert text == right_text(each), f"request {each.request_id}"
        await client.close()
        for name in list(system.listeners):
            await system.stop(name)


def right_text(generation: Generation) -> list[int]:
    tokens = list(generation.prompt)
    for _ in range(generation.stopping.max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(generation.prompt) :]


@pytest.mark.parametrize("seed", range(25))
def test_no_text_changes_and_no_request_fails(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    virtual_time.run(play(seed))
    assert "a handler failed" not in caplog.messages
