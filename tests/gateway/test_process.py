"""``python -m gateway`` serves a model folder, and on SIGTERM lets open requests end."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from augury.types import Delta, Ended, EndReason
from tests.gateway.scheduler import Scheduler, serving


@asynccontextmanager
async def process(*options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [part for option in options for part in ("--set", option)]
    environment = {**os.environ, "AUGURY_GATEWAY__PORT": "0"}
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments, env=environment, stdout=PIPE, stderr=PIPE
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


async def ready_url(running: asyncio.subprocess.Process) -> str:
    assert running.stdout is not None
    return (await running.stdout.readline()).decode().removeprefix("gateway ready at ").strip()


async def test_sigterm_lets_an_open_stream_end(folder: Path) -> None:
    scheduler = Scheduler()
    async with (
        serving(scheduler, "127.0.0.1:0") as listener,
        process(f"model.path={folder}", "model.name=tiny", f"scheduler.address={listener.address}") as running,
        asyncio.timeout(60),
        httpx.AsyncClient(base_url=await ready_url(running)) as http,
    ):
        assert (await http.get("/health/ready")).status_code == 200
        body = {"model": "tiny", "prompt": [5], "stream": True}
        saying = asyncio.create_task(say_when_asked(scheduler, Delta(ticket=1, tokens=(65,))))
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            await saying
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            running.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            scheduler.say(Delta(ticket=1, tokens=(66,), ended=Ended(reason=EndReason.STOP)))
            assert [line async for line in lines][-2] == "data: [DONE]"
        assert await running.wait() == 0


async def say_when_asked(scheduler: Scheduler, delta: Delta) -> None:
    await scheduler.until(lambda: bool(scheduler.submitted))
    scheduler.say(delta)


async def test_a_bad_setting_or_folder_is_told_in_one_line(tmp_path: Path) -> None:
    for option, complaint in ((f"model.path={tmp_path}", "config.json"), ("gateway.prot=1", "gateway.port")):
        async with process(option) as running:
            _, errors = await running.communicate()
            assert running.returncode == 2
            assert complaint in errors.decode().splitlines()[-1]
