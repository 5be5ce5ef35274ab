"""A request whose deadline passes is cancelled at the scheduler and told so, never ended as if it were complete."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import DeadlineError, InvalidRequestError
from gateway.deadline import timeout_s, until
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.test_leaving import eventually


@given(st.none() | st.integers(1, 10**8), st.none() | st.floats(min_value=0.001, max_value=1e8))
def test_the_shorter_of_header_and_field_holds(header: int | None, field: float | None) -> None:
    given_ones = [value for value in (header, field) if value is not None]
    assert timeout_s(None if header is None else str(header), field) == min(given_ones, default=None)


@pytest.mark.parametrize("header", ["", "0", "0.0", "-1", "1e3", "inf", "nan", "5s", "1_0", "1,5", "9" * 400])
def test_a_header_that_is_no_time_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequestError, match="seconds") as caught:
        timeout_s(header, None)
    assert caught.value.param == "x-request-timeout"


async def numbers(count: int, pause_s: float, log: list[str]) -> AsyncGenerator[int, None]:
    try:
        for number in range(count):
            await asyncio.sleep(pause_s)
            yield number
    finally:
        log.append("closed")


async def test_items_before_the_deadline_come_and_the_source_is_closed() -> None:
    log: list[str] = []
    now = asyncio.get_running_loop().time()
    assert [item async for item in until(now + 60, numbers(5, 0, log))] == [0, 1, 2, 3, 4]
    slow = until(now + 0.2, numbers(5, 0.15, log))
    assert await anext(slow) == 0
    with pytest.raises(DeadlineError):
        await anext(slow)
    async with aclosing(until(now + 60, numbers(5, 0, log))) as items:
        await anext(items)
    assert log == ["closed"] * 3


async def test_a_source_that_never_waits_is_stopped_too() -> None:
    async def busy() -> AsyncGenerator[int, None]:
        while True:
            yield 1

    num_items = 0
    with pytest.raises(DeadlineError):
        async for item in until(asyncio.get_running_loop().time() + 0.05, busy()):
            num_items += item
    assert num_items


async def test_a_deadline_that_has_passed_asks_for_nothing() -> None:
    log: list[str] = []
    with pytest.raises(DeadlineError):
        await anext(until(asyncio.get_running_loop().time() - 1, numbers(1, 0, log)))
    assert log == []


def test_an_answer_that_takes_too_long_is_a_504_that_is_not_repeated(
    client: openai.OpenAI, port: int, backend: ScriptedBackend
) -> None:
    backend.script = lambda _: Script(tokens=[65], pause_s=0.05)
    for extra in ({"extra_body": {"timeout": 0.3}}, {"extra_headers": {"X-Request-Timeout": "0.3"}}):
        started = time.monotonic()
        with pytest.raises(openai.InternalServerError) as caught:
            client.with_options(max_retries=2).completions.create(model="tiny", prompt="a", n=2, **extra)
        assert time.monotonic() - started < 2
        assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert len(backend.seen) == len(backend.cancelled) == 4
    assert eventually(lambda: not backend.open)
    page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    # The choice that meets the deadline first ends its siblings.
    failed = sum(
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("augury_generations_total") and ("deadline_exceeded" in line or "cancelled" in line)
    )
    assert failed == 4
    assert 'augury_generations_total{outcome="deadline_exceeded"}' in page
    assert 'outcome="length"' not in page


def test_a_stream_that_takes_too_long_ends_with_an_error(port: int, backend: ScriptedBackend) -> None:
    backend.script = lambda _: Script(tokens=[65], pause_s=0.05)
    body = {"prompt": "a", "stream": True, "timeout": 0.4}
    *frames, error, done, _ = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body).text.split("\n\n")
    assert len(frames) >= 2
    assert all('"finish_reason":null' in frame for frame in frames)
    assert '"code":"deadline_exceeded"' in error
    assert done == "data: [DONE]"
    assert len(backend.cancelled) == 1


def test_an_answer_in_time_is_not_touched(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=5, extra_body={"timeout": 60})
    assert answer.usage.completion_tokens == 5


def test_a_bad_header_is_a_bad_request(port: int) -> None:
    url, headers = f"http://127.0.0.1:{port}/v1/completions", {"x-request-timeout": "soon"}
    answer = httpx.post(url, json={"prompt": "a", "stream": True}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-timeout")
