"""The gateway as a running HTTP server."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import grpc
import uvicorn

from augury.config import Settings
from augury.models import model_folder, served_name
from gateway.app import create_app
from gateway.client import SchedulerClient
from gateway.model import ServedModel

_GRACE_S = 25
"""Time that open requests have to end: within the 30 s that Kubernetes grants a pod by default."""


async def serve(
    settings: Settings, channel: grpc.aio.Channel, stop: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Serve HTTP until ``stop`` is set, then let open requests end; ``on_ready`` gets the address, as http://host:port.

    Installs no signal handlers. Raises ValueError where the model's folder cannot be served, OSError where the
    address cannot be bound.
    """
    model = await asyncio.to_thread(_load, settings)
    backend = SchedulerClient(channel)
    server = _Server(
        uvicorn.Config(
            create_app(backend, model),
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
        stopping = asyncio.create_task(server.exit_after(stop))
        try:
            await server.serve(sockets=[listening])
        finally:
            stopping.cancel()
            await backend.close()


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

    async def exit_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.should_exit = True
