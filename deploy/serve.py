"""`augury serve`: every service in this process, until a signal."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvloop

from augury.config import Settings
from augury.models import served_name
from augury.process import stop_signal
from deploy import chat, embedded
from deploy.inspection import inspectable
from gateway.server import serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """One question to ask after the start, with the ``api_key`` that the server may want."""

    api_key: str | None


def main(settings: Settings, folder: Path, greeting: Greeting | None) -> None:
    """Serve the model in ``folder``.

    Raises ValueError, OSError where the settings or the surroundings do not permit a start.
    """
    model = msgspec.structs.replace(settings.model, path=str(folder))
    uvloop.run(_serve(msgspec.structs.replace(settings, model=model), greeting))


async def _serve(settings: Settings, greeting: Greeting | None) -> None:
    stopping = stop_signal()
    name = served_name(settings.model.name, Path(settings.model.path))
    has_keys = settings.gateway.api_keys_file is not None
    print(f"Loading {name} …", flush=True)
    async with AsyncExitStack() as stack:
        services = await embedded.start(settings)
        stack.push_async_callback(services.stop)
        kvcache = await stack.enter_async_context(inspectable("local:kvcache", settings.kvcache.address))
        await _unless(stopping, services.registered.wait())
        greetings: list[asyncio.Task[None]] = []

        def ready(url: str) -> None:
            print(_banner(url, name, kvcache, has_keys=has_keys), flush=True)
            if greeting and has_keys and not greeting.api_key:
                print(f"Nobody is greeted: {chat.KEY_VARIABLE} holds no API key.", flush=True)
            elif greeting:
                greetings.append(asyncio.create_task(_unless(stopping, _greet(url, name, greeting.api_key))))

        if not stopping.is_set():
            await serve(settings, [services.channel], stopping, ready)


async def _greet(url: str, model: str, api_key: str | None) -> None:
    try:
        await chat.greet(url, model, api_key)
    except (chat.ChatError, httpx.HTTPError) as error:
        print(f"The greeting failed: {error or type(error).__name__}", flush=True)


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, object]) -> None:
    """Do ``work``, and give it up once ``stopping`` is set."""
    tasks = [asyncio.create_task(work), asyncio.create_task(stopping.wait())]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _banner(url: str, model: str, kvcache: str | None, *, has_keys: bool) -> str:
    key = f' -H "Authorization: Bearer ${chat.KEY_VARIABLE}"' if has_keys else ""
    lines = [
        f"Augury serves {model} at {url}/v1   (Ctrl-C stops it)",
        "",
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\",
        f'''    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a prefix cache?"}}]}}\'''',
        f"  augury chat --url {url}",
    ]
    if kvcache:
        lines.append(f"  augury kv inspect --address {kvcache}")
    return "\n".join(["", *lines, ""])
