"""Requests that find no worker wait as long as they may, and are then told so in the form that they can be told."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.stacks import Processes
from tests.e2e.test_processes import wait_for_workers
from tests.redis_server import RedisServer

WAIT_SECONDS = 2.0
BODY = {"model": "tiny", "prompt": "the story of", "max_tokens": 400, "ignore_eos": True}
Timed = tuple[httpx.Response, float]


@pytest.fixture
def tiny(tiny_model: Path) -> Iterator[Processes]:
    with (
        RedisServer() as redis,
        Processes(tiny_model, redis.url, None, "float32", **{"scheduler.wait_seconds": str(WAIT_SECONDS)}) as system,
    ):
        wait_for_workers(system, 2)
        yield system


def post(url: str, **fields: object) -> Timed:
    """The answer and the seconds until it was whole."""
    started = time.monotonic()
    answer = httpx.post(f"{url}/v1/completions", json={**BODY, **fields}, timeout=60)
    return answer, time.monotonic() - started


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_whoever_waits_longer_than_the_setting_or_its_deadline_is_told(tiny: Processes) -> None:
    url = tiny.url
    with (
        ThreadPoolExecutor(8) as pool,
        httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "stream": True, "n": 2}, timeout=60) as begun,
    ):
        lines = begun.iter_lines()
        next(lines)
        for name in ("worker-0", "worker-1"):
            tiny.running[name].kill()
        asked: dict[str, Future[Timed]] = {
            "one": pool.submit(post, url),
            "two": pool.submit(post, url, n=2),
            "streamed": pool.submit(post, url, stream=True, n=2),
            "hurried": pool.submit(post, url, timeout=0.5, n=2),
        }
        *_, error = events("\n".join(lines))
        answers = {name: future.result() for name, future in asked.items()}
    assert begun.status_code == 200 and error["error"]["code"] == "no_worker"
    for name in ("one", "two", "streamed"):
        answer, seconds = answers[name]
        assert WAIT_SECONDS <= seconds < WAIT_SECONDS + 5, name
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
        assert int(answer.headers["retry-after"]) > 0 and answer.json()["error"]["code"] == "no_worker"
    hurried, seconds = answers["hurried"]
    assert 0.5 <= seconds < WAIT_SECONDS and hurried.json()["error"]["code"] == "deadline_exceeded"
    assert tiny.describe().num_parked == 0
