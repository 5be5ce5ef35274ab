"""All services and the gateway in one process, for tests of what only the whole can show."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from augury import config
from deploy import embedded
from gateway.app import create_app
from gateway.client import SchedulerClient
from gateway.door import Door
from gateway.model import ServedModel
from tests.gateway.tiny import write_model
from tests.worker.tiny import save_llama


def write_llama(folder: Path) -> Path:
    """A model folder with weights."""
    save_llama(write_model(folder), vocab_size=400, max_position_embeddings=512, eos_token_id=2)
    return folder


@asynccontextmanager
async def system(
    folder: Path, *overrides: str, door: Door | None = None, shared_salt: str | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """As an HTTP client sees it."""
    settings = config.load(overrides=[f"model.path={folder}", "kv.num_blocks=60", "worker.threads=1", *overrides])
    services = await embedded.start(settings)
    backend = SchedulerClient(services.channel)
    app: Starlette = create_app(backend, ServedModel.load(folder, "tiny"), door, shared_salt)
    try:
        await services.registered.wait()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
            yield http
    finally:
        await backend.close()
        await services.stop()


async def complete(
    http: httpx.AsyncClient, prompt: Sequence[int], headers: Mapping[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """The usage of one completion."""
    body = {"prompt": list(prompt), "ignore_eos": True, **fields}
    answer = (await http.post("/v1/completions", json=body, headers=headers)).raise_for_status()
    usage: dict[str, Any] = answer.json()["usage"]
    return usage
