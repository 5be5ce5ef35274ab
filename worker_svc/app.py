"""Puts a worker together from settings: engine, service, registration."""

import asyncio
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import torch

from augury import rpc
from augury.config import Settings
from augury.models import model_folder, served_name
from augury.types import WorkerInfo
from augury.v1.worker_pb2_grpc import add_WorkerServicer_to_server
from worker_svc.device import pick_device
from worker_svc.engine import Engine, EngineOptions
from worker_svc.model.description import read_architecture
from worker_svc.registration import keep_registered
from worker_svc.service import WorkerService

_SMALL_MLP = 1 << 20
"""Weights of a layer's gate and up projections together, its largest product, below which one thread is used: to share
work so small takes longer than to do it, and threads that wait for one another spin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerApp:
    """``registered`` is set while the scheduler knows the worker; ``leaving``, once set, makes it give it up."""

    listener: rpc.Listener
    registered: asyncio.Event
    leaving: asyncio.Event
    registration: asyncio.Task[None]
    schedulers: Sequence[grpc.aio.Channel]
    executor: ThreadPoolExecutor

    @property
    def address(self) -> str:
        return self.listener.address

    async def drain(self) -> None:
        """Return once the scheduler expects nothing of the worker any more, or is gone."""
        await self.listener.set_ready(False)
        self.leaving.set()
        await asyncio.wait([self.registration])

    async def stop(self, grace_s: float) -> None:
        self.registration.cancel()
        await asyncio.wait([self.registration])
        await self.listener.stop(grace_s)
        for scheduler in self.schedulers:
            await scheduler.close()
        self.executor.shutdown(wait=False, cancel_futures=True)


async def start(settings: Settings) -> WorkerApp:
    """Load the model, serve at ``worker.address`` and register at a scheduler. Raises OSError, ValueError."""
    folder = model_folder(settings.model.path, os.environ)
    executor = ThreadPoolExecutor(1, "engine", _set_threads, (num_threads(settings.worker.threads, folder),))
    engine = await asyncio.get_running_loop().run_in_executor(executor, _load, settings)
    listener = await rpc.listen(
        settings.worker.address, partial(add_WorkerServicer_to_server, WorkerService(engine, executor))
    )
    info = WorkerInfo(
        worker_id=settings.worker.id or f"worker-{secrets.token_hex(4)}",
        incarnation=secrets.token_hex(8),
        address=settings.worker.advertise or listener.address,
        model=served_name(settings.model.name, folder),
        fingerprint=engine.description.fingerprint,
        num_blocks=engine.num_blocks,
        groups=engine.description.groups,
        max_model_len=engine.description.max_model_len,
        vocab_size=engine.description.vocab_size,
        num_prefill_lookahead=engine.description.num_prefill_lookahead,
        max_drafts=engine.description.max_drafts,
    )
    schedulers = [rpc.connect(address) for address in settings.scheduler.reached_at]
    registered, leaving = asyncio.Event(), asyncio.Event()
    return WorkerApp(
        listener=listener,
        registered=registered,
        leaving=leaving,
        registration=asyncio.create_task(keep_registered(info, schedulers, registered, leaving)),
        schedulers=schedulers,
        executor=executor,
    )


def num_threads(wanted: int | None, folder: Path) -> int | None:
    """Threads of the forward pass: as many as are wanted, else one for a small model, else None: as torch chooses.

    Raises ValueError where ``folder`` holds no model that runs here.
    """
    if wanted is not None:
        return wanted
    a = read_architecture(folder)
    return 1 if 2 * a.hidden_size * a.intermediate_size < _SMALL_MLP else None


def _load(settings: Settings) -> Engine:
    return Engine.load(
        model_folder(settings.model.path, os.environ),
        EngineOptions(
            dtype=settings.model.dtype,
            block_size=settings.kv.block_size,
            hybrid=settings.kv.hybrid == "auto",
            num_blocks=settings.kv.num_blocks,
            memory_mb=settings.kv.memory_mb,
            max_len=settings.model.max_len,
            device=pick_device(settings.worker.device),
            attention=settings.worker.attention,
            depth=None if settings.speculation.depth == "auto" else int(settings.speculation.depth),
        ),
    )


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
