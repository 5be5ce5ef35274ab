"""``python -m gateway`` serves a model folder, and on SIGTERM lets open answers end while it refuses others."""

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

BODY = {"model": "tiny", "prompt": [5], "stream": True}
Gateway = tuple[asyncio.subprocess.Process, httpx.AsyncClient]


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


@asynccontextmanager
async def served(folder: Path, scheduler: Scheduler, *options: str) -> AsyncIterator[Gateway]:
    """A gateway process in front of ``scheduler``, and a client of it."""
    settings = (f"model.path={folder}", "model.name=tiny", *options)
    async with (
        serving(scheduler, "127.0.0.1:0") as listener,
        process(*settings, f"scheduler.address={listener.address}") as running,
        asyncio.timeout(60),
        httpx.AsyncClient(base_url=await ready_url(running)) as http,
    ):
        yield running, http


@asynccontextmanager
async def begun(http: httpx.AsyncClient, scheduler: Scheduler) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a stream after the first event."""
    saying = asyncio.create_task(say_when_asked(scheduler, Delta(ticket=1, tokens=(65,))))
    async with http.stream("POST", "/v1/completions", json=BODY) as answer:
        await saying
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: {")
        yield lines


async def not_ready(http: httpx.AsyncClient) -> None:
    for _ in range(1000):
        if (await http.get("/health/ready")).status_code == 503:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it stays ready")


async def test_sigterm_lets_an_open_stream_end_and_refuses_new_requests(folder: Path) -> None:
    scheduler = Scheduler()
    async with served(folder, scheduler) as (running, http):
        assert (await http.get("/health/ready")).status_code == 200
        async with begun(http, scheduler) as lines:
            running.send_signal(signal.SIGTERM)
            await not_ready(http)
            assert (await http.get("/health/live")).status_code == 200
            refused = await http.post("/v1/completions", json=BODY)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            await asyncio.sleep(0.5)
            scheduler.say(Delta(ticket=1, tokens=(66,), ended=Ended(reason=EndReason.STOP)))
            assert [line async for line in lines][-2] == "data: [DONE]"
        assert await running.wait() == 0
    assert len(scheduler.submitted) == 1


async def test_a_stream_that_outlasts_the_drain_is_told_so(folder: Path) -> None:
    scheduler = Scheduler()
    async with served(folder, scheduler, "gateway.drain_seconds=0.5") as (running, http):
        async with begun(http, scheduler) as lines:
            running.send_signal(signal.SIGTERM)
            error, done = [line async for line in lines if line]
        assert "the gateway is shutting down" in error
        assert done == "data: [DONE]"
        assert await running.wait() == 0


async def test_an_idle_gateway_stops_at_once(folder: Path) -> None:
    async with served(folder, Scheduler()) as (running, http):
        assert (await http.get("/health/live")).status_code == 200
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            assert await running.wait() == 0


async def test_keys_are_read_from_the_file_of_the_setting(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-one\n")
    async with served(folder, Scheduler(), f"gateway.api_keys_file={file}") as (_, http):
        statuses = [
            (await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code
            for key in ("sk-one", "sk-two")
        ]
    assert statuses == [200, 401]


async def say_when_asked(scheduler: Scheduler, delta: Delta) -> None:
    await scheduler.until(lambda: bool(scheduler.submitted))
    scheduler.say(delta)


async def test_a_bad_setting_or_folder_is_told_in_one_line(tmp_path: Path) -> None:
    keys = (f"gateway.api_keys_file={tmp_path / 'keys'}", "the API keys cannot be read: No such file")
    for option, complaint in ((f"model.path={tmp_path}", "config.json"), ("gateway.prot=1", "gateway.port"), keys):
        async with process(option) as running:
            _, errors = await running.communicate()
            assert running.returncode == 2
            assert complaint in errors.decode().splitlines()[-1]
