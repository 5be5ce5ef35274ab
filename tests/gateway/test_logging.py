"""Every line logged for a request carries its id, and none of them its text unless that is asked for."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from augury import rpc, telemetry
from augury.errors import NotFiniteError
from augury.types import Delta
from gateway.app import create_app
from gateway.client import SchedulerClient
from gateway.model import ServedModel
from tests.gateway import scheduler
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.serving import serving
from tests.gateway.test_client import wish

SECRET = "xylophone"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a service would write at level debug."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    telemetry.setup("debug")
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(written := io.StringIO())
    yield written
    root.handlers[:], root.level = handlers, level


class Failing(ScriptedBackend):
    """Whose requests end with a fault of its own."""

    async def generate(self, generation: Any) -> Any:
        raise ZeroDivisionError("a fault of the gateway")
        yield Delta(ticket=1)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    """Without those of the test's own client."""
    found = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in found if not line["logger"].startswith(("asyncio", "httpcore"))]


def chat(port: int, request_id: str, **more: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": f"say {SECRET}"}], "max_tokens": 3, **more}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"x-request-id": request_id}
    return httpx.post(url, json=body, headers=headers)


def test_an_answer_is_one_line_with_what_it_took(port: int, log: io.StringIO) -> None:
    assert chat(port, "r-1", n=2).status_code == 200
    httpx.get(f"http://127.0.0.1:{port}/health")
    (line,) = lines(log)
    assert line["seconds"] >= 0 and line["prompt_tokens"] > 3
    wanted = {
        "logger": "gateway.passage",
        "event": "answered",
        "request_id": "r-1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "cached_tokens": 0,
        "completion_tokens": 6,
        "outcomes": ["length", "length"],
    }
    assert wanted.items() <= line.items()


def test_generations_bear_the_id_of_their_request(port: int, backend: ScriptedBackend) -> None:
    chat(port, "r-2", n=2)
    assert [generation.request_id for generation in backend.seen] == ["r-2-0", "r-2-1"]


def test_failures_are_logged_with_the_id_and_without_the_text(model: ServedModel, log: io.StringIO) -> None:
    with serving(create_app(Failing(lambda _: Script(tokens=[])), model)) as port:
        assert chat(port, "r-3").status_code == 500
    bad = ScriptedBackend(lambda _: Script(tokens=[], error=NotFiniteError("not finite")))
    with serving(create_app(bad, model)) as port:
        assert chat(port, "r-3", stream=True).status_code >= 400
        assert chat(port, "r-3", top_p=f"{SECRET}").status_code == 400
    written = lines(log)
    assert any("ZeroDivisionError" in line.get("exception", "") for line in written)
    assert len(written) >= 4
    assert {line.get("request_id") for line in written} == {"r-3"}
    assert SECRET not in json.dumps(written)


@pytest.mark.parametrize("asked", [True, False])
def test_prompts_are_logged_only_where_that_is_asked_for(
    model: ServedModel, backend: ScriptedBackend, log: io.StringIO, asked: bool
) -> None:
    with serving(create_app(backend, model, log_prompts=asked)) as port:
        chat(port, "r-4")
    shown = [line for line in lines(log) if SECRET in json.dumps(line)]
    assert [line["request_id"] for line in shown] == (["r-4"] if asked else [])


async def test_the_stream_to_the_scheduler_logs_for_no_request(log: io.StringIO) -> None:
    telemetry.request_id.set("r-5")
    said = scheduler.Scheduler()
    async with scheduler.serving(said, "127.0.0.1:0") as listener:
        channel = rpc.connect(listener.address)
        client = SchedulerClient(channel)
        reading = asyncio.create_task(anext(client.generate(wish("a"))))
        await said.until(lambda: bool(said.submitted))
        said.outbox.put_nowait(None)
        await asyncio.wait([reading])
        await client.close()
        await channel.close()
    (line,) = [line for line in lines(log) if "broke" in line["event"]]
    assert "request_id" not in line
