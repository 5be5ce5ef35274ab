"""A client that floods the gateway is told to wait, and others are served meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from augury import limits
from augury.errors import RateLimitError
from augury.types import Delta, Generation, SamplingParams, StopParams
from gateway.api_keys import ApiKeys
from gateway.app import create_app
from gateway.continuing import Continuing
from gateway.door import Door
from gateway.model import ServedModel
from tests.gateway.scheduler import Scheduler, serving
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.test_client import connected
from tests.gateway.test_leaving import eventually

A, B = b"a" * 16, b"b" * 16


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    file = tmp_path / "keys"
    file.write_text("sk-a\nsk-b\n")
    return ApiKeys(file)


async def ask(http: httpx.AsyncClient, key: str, **fields: Any) -> httpx.Response:
    body = {"prompt": "a", "max_tokens": 1, **fields}
    return await http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})


async def test_one_key_cannot_take_the_places_of_another(
    backend: ScriptedBackend, model: ServedModel, keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS_PER_GATEWAY", 18)
    backend.script = lambda _: Script(tokens=[65], pause_s=0.05)
    transport = httpx.ASGITransport(create_app(backend, model, Door(keys)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        flood = [asyncio.create_task(ask(http, "sk-a", max_tokens=20)) for _ in range(16)]
        assert await asyncio.to_thread(eventually, lambda: len(backend.open) == 16)
        refused = await ask(http, "sk-a")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await ask(http, "sk-b")).status_code == 200
        assert [answer.status_code for answer in await asyncio.gather(*flood)] == [200] * 16
        assert (await ask(http, "sk-a")).status_code == 200
    first, other = ({each.client for each in backend.seen if each.stopping.max_tokens == wanted} for wanted in (20, 1))
    assert first < other and len(other) == 2 and None not in other


async def test_choices_count_and_not_only_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request may ask for many generations: the stream to the scheduler has places of its own."""
    monkeypatch.setattr(limits, "MAX_REQUESTS_PER_GATEWAY", 9)
    scheduler = Scheduler()
    async with serving(scheduler, "local:scheduler") as listener, connected(listener.address) as client:
        flood = [client.generate(asked(A, n)) for n in range(9)]
        tasks = [asyncio.ensure_future(anext(stream)) for stream in flood[:8]]
        await scheduler.until(lambda: len(scheduler.submitted) == 8)
        with pytest.raises(RateLimitError):
            await anext(flood[8])
        tasks.append(asyncio.ensure_future(anext(client.generate(asked(B, 9)))))
        await scheduler.until(lambda: len(scheduler.submitted) == 9)
        assert [each.client for each in scheduler.submitted.values()] == [A] * 8 + [B]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_what_goes_on_elsewhere_is_still_its_clients() -> None:
    scheduler = Scheduler()
    async with serving(scheduler, "local:scheduler") as listener, connected(listener.address) as client:
        stream = Continuing([client], wait_s=5.0).generate(asked(A, 1))
        first = asyncio.ensure_future(anext(stream))
        await scheduler.until(lambda: len(scheduler.submitted) == 1)
        scheduler.say(Delta(ticket=1, tokens=(5,)))
        assert (await first).tokens == (5,)
        scheduler.outbox.put_nowait(None)
        rest = asyncio.ensure_future(anext(stream))
        await scheduler.until(lambda: len(scheduler.submitted) == 2)
        assert [(each.client, each.emitted) for each in scheduler.submitted.values()] == [(A, ()), (A, (5,))]
        rest.cancel()
        await asyncio.wait([rest])


def asked(client: bytes, number: int) -> Generation:
    stopping = StopParams(max_tokens=9)
    return Generation(request_id=str(number), prompt=(1,), sampling=SamplingParams(), stopping=stopping, client=client)
