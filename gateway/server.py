"""The gateway as a running HTTP server."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import uvicorn

from augury.config import GatewaySettings, Settings
from augury.models import model_folder, served_name
from gateway.api_keys import ApiKeys
from gateway.app import create_app
from gateway.client import SchedulerClient
from gateway.continuing import Continuing
from gateway.door import Door
from gateway.model import ServedModel

_GRACE_S = 2
"""Time that what is left after the drain has to tell its clients that it failed."""


async def serve(
    settings: Settings, schedulers: Sequence[grpc.aio.Channel], stop: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Serve HTTP until ``stop`` is set, then drain; ``on_ready`` gets the address, as http://host:port.

    While it drains, answers that have begun go on, for gateway.drain_seconds at most; those still open then end with
    an error. Other requests are refused, and not to be ready is what health tells. Installs no signal handlers. Raises
    ValueError where the model's folder or the API keys cannot be read, OSError where the address cannot be bound.
    """
    door = _door(settings.gateway)
    model = await asyncio.to_thread(_load, settings)
    backend = Continuing([SchedulerClient(channel) for channel in schedulers], settings.scheduler.wait_seconds)
    server = _Server(
        uvicorn.Config(
            create_app(backend, model, door, settings.gateway.shared_cache_salt, settings.log.prompts),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
    host, port = settings.gateway.host, settings.gateway.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        shown_host = f"[{host}]" if ":" in host else host
        server.on_started = partial(on_ready, f"http://{shown_host}:{listening.getsockname()[1]}")
        drain = partial(_drain, door, backend, settings.gateway.drain_seconds)
        stopping = asyncio.create_task(server.exit_after(stop, drain))
        try:
            await server.serve(sockets=[listening])
        finally:
            stopping.cancel()
            await backend.close()


async def _drain(door: Door, backend: Continuing, drain_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await door.close()
    await backend.close()


def _door(settings: GatewaySettings) -> Door:
    return Door(None if settings.api_keys_file is None else ApiKeys(Path(settings.api_keys_file)))


def _load(settings: Settings) -> ServedModel:
    folder = model_folder(settings.model.path, os.environ)
    return ServedModel.load(folder, served_name(settings.model.name, folder))


class _Server(uvicorn.Server):
    """Leaves signals to its caller, and tells when it takes connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.on_started: Callable[[], None] = lambda: None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

    async def exit_after(self, stop: asyncio.Event, drain: Callable[[], Awaitable[None]]) -> None:
        await stop.wait()
        await drain()
        self.should_exit = True
