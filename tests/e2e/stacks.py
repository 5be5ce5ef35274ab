"""Whole systems for tests: every service in this process, or each in a process of its own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from augury import config, rpc
from augury.types import Generation, SamplingParams, StopParams
from augury.v1 import kvcache_pb2, scheduler_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub
from augury.v1.scheduler_pb2_grpc import SchedulerStub
from deploy import embedded
from deploy.chaos.process import START_SECONDS, Process, start_service
from gateway.client import SchedulerClient

NUM_WORKERS = 2


GREEDY = SamplingParams(temperature=0.0)


def generation(prompt: Sequence[int], num_tokens: int, sampling: SamplingParams = GREEDY) -> Generation:
    """``num_tokens`` tokens after ``prompt``, whatever they are."""
    return Generation(
        request_id="test",
        prompt=tuple(prompt),
        sampling=sampling,
        stopping=StopParams(max_tokens=num_tokens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """The services of `augury serve` behind the gateway, and the gateway's client to them."""

    client: SchedulerClient
    scheduler: SchedulerStub
    kvcache: KVCacheStub

    async def tokens(self, wanted: Generation) -> list[int]:
        return [token async for delta in self.client.generate(wanted) for token in delta.tokens]

    async def worker(self) -> scheduler_pb2.WorkerState:
        (state,) = (await self.scheduler.Describe(scheduler_pb2.DescribeRequest())).workers
        return state

    async def pool(self) -> kvcache_pb2.PoolState:
        (state,) = (await self.kvcache.Inspect(kvcache_pb2.InspectRequest())).pools
        return state


@asynccontextmanager
async def in_process(folder: Path, *overrides: str) -> AsyncIterator[InProcess]:
    """The embedded system serving ``folder``."""
    services = await embedded.start(config.load(overrides=[f"model.path={folder}", *overrides]))
    client, kvcache = SchedulerClient(services.channel), rpc.connect("local:kvcache")
    try:
        yield InProcess(client=client, scheduler=SchedulerStub(services.channel), kvcache=KVCacheStub(kvcache))
    finally:
        await client.close()
        await kvcache.close()
        await services.stop()


class Processes:
    """The four services, each in its own process, with two workers and Redis at ``redis_url``."""

    def __init__(self, folder: Path, redis_url: str, sockets: Path | None, dtype: str, **settings: str) -> None:
        """Services meet at unix sockets in ``sockets``, or over TCP where that is None. ``settings`` by dotted name."""
        self._settings = {
            "model.path": str(folder),
            "model.dtype": dtype,
            "registry.url": redis_url,
            "worker.threads": "1",
            **settings,
        }
        self._sockets = sockets
        self.running: dict[str, Process] = {}

    @property
    def url(self) -> str:
        return self.running["gateway"].address

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._kill_all)
            kvcache = self._start("kvcache_svc", **{"kvcache.address": self._address("kvcache")})
            self._settings["kvcache.address"] = kvcache.wait_ready()
            scheduler = self._start("scheduler_svc", **{"scheduler.address": self._address("scheduler")})
            self._settings["scheduler.address"] = scheduler.wait_ready()
            workers = [self.start_worker(f"worker-{index}") for index in range(NUM_WORKERS)]
            gateway = self._start("gateway", **{"gateway.port": "0"})
            for process in (*workers, gateway):
                process.wait_ready()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()

    def _kill_all(self) -> None:
        for process in self.running.values():
            process.kill()

    @property
    def kvcache_address(self) -> str:
        return self._settings["kvcache.address"]

    def describe(self) -> scheduler_pb2.Description:
        with grpc.insecure_channel(self._settings["scheduler.address"]) as channel:
            return SchedulerStub(channel).Describe(scheduler_pb2.DescribeRequest(), timeout=START_SECONDS)

    def inspect(self, num_prefixes: int = 0) -> kvcache_pb2.Inspection:
        with grpc.insecure_channel(self.kvcache_address) as channel:
            request = kvcache_pb2.InspectRequest(num_prefixes=num_prefixes)
            return KVCacheStub(channel).Inspect(request, timeout=START_SECONDS)

    def restart(self, name: str) -> None:
        """Start a service that has ended again, at its address."""
        option = f"{name.removesuffix('_svc')}.address"
        self._start(name, **{option: self._settings[option]}).wait_ready()

    def start_worker(self, worker_id: str) -> Process:
        address = self._address(worker_id)
        return self._start("worker_svc", worker_id, **{"worker.id": worker_id, "worker.address": address})

    def terminate(self, name: str) -> int:
        """SIGTERM; returns the exit status."""
        return self.running[name].terminate()

    def _address(self, name: str) -> str:
        return "127.0.0.1:0" if self._sockets is None else f"unix:{self._sockets / name}"

    def _start(self, module: str, name: str | None = None, **settings: str) -> Process:
        process = self.running[name or module] = start_service(module, {**self._settings, **settings})
        return process
