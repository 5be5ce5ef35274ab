"""`augury serve`: every service in this process, until a signal."""

import asyncio
from pathlib import Path

import msgspec
import uvloop

from augury.config import Settings
from augury.models import served_name
from augury.process import stop_signal
from deploy import chat, embedded
from gateway.server import serve


def main(settings: Settings, folder: Path, *, greet: bool) -> None:
    """Serve the model in ``folder``.

    Raises ValueError, OSError where the settings or the surroundings do not permit a start.
    """
    model = msgspec.structs.replace(settings.model, path=str(folder))
    uvloop.run(_serve(msgspec.structs.replace(settings, model=model), greet=greet))


async def _serve(settings: Settings, *, greet: bool) -> None:
    stopping = stop_signal()
    name = served_name(settings.model.name, Path(settings.model.path))
    print(f"Loading {name} …", flush=True)
    services = await embedded.start(settings)
    await services.registered.wait()
    greetings: list[asyncio.Task[None]] = []

    def ready(url: str) -> None:
        print(_banner(url, name), flush=True)
        if greet and settings.gateway.api_keys_file is None:  # it has no key
            greetings.append(asyncio.create_task(_greet(url, name, stopping)))

    try:
        await serve(settings, [services.channel], stopping, ready)
    finally:
        await services.stop()


async def _greet(url: str, name: str, stopping: asyncio.Event) -> None:
    """A first question and its answer, unless the server is stopped meanwhile."""
    tasks = [asyncio.create_task(chat.greet(url, name)), asyncio.create_task(stopping.wait())]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _banner(url: str, model: str) -> str:
    return f"""
Augury serves {model} at {url}/v1   (Ctrl-C stops it)

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a prefix cache?"}}]}}'
"""
