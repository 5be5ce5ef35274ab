"""Whoever leaves, a client or a choice that met its stop string, is cancelled at once, and nobody else."""

import json
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from tests.gateway.scripted import Script, ScriptedBackend


def eventually(condition: Callable[[], bool], within_s: float = 1.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def ask(port: int, **fields: object) -> socket.socket:
    body = json.dumps({"prompt": "a", **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    raw = socket.create_connection(("127.0.0.1", port))
    raw.sendall(head.encode() + body)
    return raw


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause_s", [0.01, 60.0], ids=["amid tokens", "before the first token"])
def test_all_choices_of_a_client_that_leaves_are_cancelled_within_a_second(
    port: int, backend: ScriptedBackend, stream: bool, pause_s: float
) -> None:
    backend.script = lambda _: Script(tokens=[65], pause_s=pause_s)
    raw = ask(port, stream=stream, n=3)
    assert eventually(lambda: len(backend.open) == 3)
    if stream and pause_s < 1:
        assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")
    raw.close()
    assert eventually(lambda: not backend.open)
    assert len(backend.cancelled) == 3


def test_a_choice_that_meets_a_stop_string_is_cancelled_alone(port: int, backend: ScriptedBackend) -> None:
    reply = backend.script
    backend.script = lambda asked: reply(asked) if asked.request_id.endswith("-1") else Script(tokens=[65])
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "a", "n": 2, "stop": "größer"})
    reasons = [choice["finish_reason"] for choice in answer.json()["choices"]]
    assert reasons == ["length", "stop"]
    assert [request_id[-2:] for request_id in backend.cancelled] == ["-1"]
