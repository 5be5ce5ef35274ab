"""`augury serve`: every service in this process, until a signal."""

import asyncio
import os

import uvloop

from augury.config import Settings
from augury.models import model_folder, served_name
from augury.process import stop_signal
from deploy import chat, embedded
from gateway.server import serve


def main(settings: Settings, *, greet: bool) -> None:
    """Raises ValueError, OSError where the settings or the surroundings do not permit a start."""
    uvloop.run(_serve(settings, greet=greet))


async def _serve(settings: Settings, *, greet: bool) -> None:
    stopping = stop_signal()
    name = served_name(settings.model.name, model_folder(settings.model.path, os.environ))
    print(f"Loading {name} …", flush=True)
    services = await embedded.start(settings)
    await services.registered.wait()
    greetings: set[asyncio.Task[None]] = set()

    def ready(url: str) -> None:
        print(_banner(url, name), flush=True)
        if greet:
            greetings.add(asyncio.create_task(chat.greet(url, name)))

    try:
        await serve(settings, services.channel, stopping, ready)
    finally:
        for greeting in greetings:
            greeting.cancel()
        await services.stop()


def _banner(url: str, model: str) -> str:
    return f"""
Augury serves {model} at {url}/v1   (Ctrl-C stops it)

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a prefix cache?"}}]}}'
"""
