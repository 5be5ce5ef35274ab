"""Nobody is let in once the gateway shuts down, or while too many are inside; who is inside is not disturbed."""

import asyncio
import threading
from collections.abc import Iterator

import httpx
import openai
import pytest

from augury import limits
from augury.errors import OverloadedError
from augury.types import Generation
from gateway.app import create_app
from gateway.door import Door
from gateway.model import ServedModel
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.serving import serving
from tests.gateway.test_leaving import eventually


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def port(backend: ScriptedBackend, model: ServedModel, door: Door) -> Iterator[int]:
    with serving(create_app(backend, model, door)) as port:
        yield port


def test_a_closed_door_refuses_and_is_not_ready_while_streams_go_on(
    client: openai.OpenAI, port: int, backend: ScriptedBackend, door: Door
) -> None:
    backend.script = lambda _: Script(tokens=[65], pause_s=0.02)
    stream = iter(client.completions.create(model="tiny", prompt="a", max_tokens=40, stream=True))
    texts = [next(stream).choices[0].text]
    door.closed = True
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        for path, status in (("/health/ready", 503), ("/health", 503), ("/health/live", 200), ("/metrics", 200)):
            answer = http.get(path)
            assert (answer.status_code, answer.headers["connection"]) == (status, "close")
        for stream_too in (False, True):
            answer = http.post("/v1/completions", json={"prompt": "a", "stream": stream_too})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["message"] == "the gateway is shutting down"
            assert answer.headers["connection"] == "close"
    texts += [chunk.choices[0].text for chunk in stream]
    assert len("".join(texts)) == 40
    assert len(backend.seen) == 1


async def test_closing_waits_for_those_inside(backend: ScriptedBackend, model: ServedModel) -> None:
    backend.script = lambda _: Script(tokens=[65], pause_s=0.02)
    door = Door()
    transport = httpx.ASGITransport(create_app(backend, model, door))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        assert (await http.post("/v1/completions", json={"prompt": 5})).status_code == 400
        body = {"prompt": "a", "max_tokens": 10}
        bodies = [{**body, "stream": stream} for stream in (False, True)]
        asking = [asyncio.create_task(http.post("/v1/completions", json=body)) for body in bodies]
        assert await asyncio.to_thread(eventually, lambda: len(backend.open) == 2)
        closing = asyncio.create_task(door.close())
        done, _ = await asyncio.wait([closing], timeout=0.05)
        assert not done
        answers = await asyncio.gather(*asking)
        await asyncio.wait_for(closing, 1)
    assert [answer.status_code for answer in answers] == [200, 200]


def test_one_too_many_is_told_to_come_back(
    client: openai.OpenAI, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS_PER_GATEWAY", 2)
    backend.script = lambda _: Script(tokens=[65], pause_s=0.05)
    answers: list[str] = []

    def ask() -> None:
        answer = client.completions.create(model="tiny", prompt="a", max_tokens=20)
        answers.append(answer.choices[0].text)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(backend.open) == 2)
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="tiny", prompt="a", max_tokens=1)
    assert (caught.value.status_code, caught.value.code) == (503, "server_overloaded")
    assert caught.value.response.headers["retry-after"] == "1"
    for thread in threads:
        thread.join()
    assert [len(answer) for answer in answers] == [20, 20]
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices


def test_an_overload_of_the_scheduler_is_told_before_anything_is_streamed(
    client: openai.OpenAI, backend: ScriptedBackend
) -> None:
    def script(generation: Generation) -> Script:
        return Script(tokens=[], error=OverloadedError("8192 requests are open already"))

    backend.script = script
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model="tiny", prompt="a", stream=stream)
        assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "1")


def test_a_worker_that_takes_no_requests_beside_one_that_does_is_told(port: int, backend: ScriptedBackend) -> None:
    url = f"http://127.0.0.1:{port}/health"
    assert httpx.get(url).json() == {"status": "ok"}
    backend.num_workers, backend.num_silent = 2, 1
    answer = httpx.get(url)
    assert answer.status_code == 200
    assert answer.json() == {"status": "degraded", "reasons": ["1 of 2 workers take no requests"]}
