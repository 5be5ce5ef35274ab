"""Bad input is refused with the right body before anything is streamed, and neighbours never notice."""

import json
import socket
import threading
from typing import Any

import httpx
import openai
import pytest

from augury import limits
from augury.types import Generation
from tests.gateway.conftest import REPLY
from tests.gateway.scripted import VOCAB, WINDOW, Script, ScriptedBackend

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}

# (path, body, status, param, code); a dict is a valid request with these fields on top.
INVALID = "invalid_request"
BAD: list[tuple[str, Any, int, str | None, str]] = [
    (CHAT, b"", 400, None, INVALID),
    (CHAT, b"{", 400, None, INVALID),
    (CHAT, b"[]", 400, None, INVALID),
    (CHAT, b"\xff\xfe", 400, None, INVALID),
    (CHAT, b"[" * 200_000, 400, None, INVALID),
    (CHAT, b'{"messages": [{"role": "user", "content": "\xff"}]}', 400, None, INVALID),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, None, INVALID),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\udc00\\ud800 lone"}]}', 400, None, INVALID),
    (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}', 400, None, INVALID),
    (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": -Infinity}', 400, None, INVALID),
    (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}', 400, None, INVALID),
    (CHAT, b'{"messages": "' + b"a" * limits.MAX_BODY_BYTES + b'"}', 400, None, INVALID),
    (CHAT, {"model": "other"}, 404, "model", "model_not_found"),
    (CHAT, {"model": 5}, 400, "model", INVALID),
    (CHAT, {"messages": None}, 400, "messages", INVALID),
    (CHAT, {"messages": []}, 400, "messages", INVALID),
    (CHAT, {"messages": "hello"}, 400, "messages", INVALID),
    (CHAT, {"messages": [USER] * (limits.MAX_MESSAGES + 1)}, 400, "messages", INVALID),
    (CHAT, {"messages": ["hello"]}, 400, "messages[0]", INVALID),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0]", INVALID),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", INVALID),
    (CHAT, {"messages": [{"role": "tool", "content": "a"}]}, 400, "messages[0].role", INVALID),
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "messages[0].content[0].type", INVALID),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "messages[0].tool_calls", INVALID),
    (CHAT, {"messages": [{"role": "user", "content": "fox " * WINDOW}]}, 400, "messages", "context_length_exceeded"),
    (CHAT, {"max_tokens": "5"}, 400, "max_tokens", INVALID),
    (CHAT, {"max_tokens": True}, 400, "max_tokens", INVALID),
    (CHAT, {"max_tokens": 2.5}, 400, "max_tokens", INVALID),
    (CHAT, {"max_tokens": -1}, 400, "max_tokens", INVALID),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens", INVALID),
    (CHAT, {"max_tokens": 10**40}, 400, "max_tokens", "context_length_exceeded"),
    (CHAT, {"max_completion_tokens": WINDOW}, 400, "max_tokens", "context_length_exceeded"),
    (CHAT, {"max_tokens": 3, "min_tokens": 4}, 400, None, INVALID),
    (CHAT, {"min_tokens": WINDOW}, 400, "messages", "context_length_exceeded"),
    (CHAT, {"max_drafts": -1}, 400, "max_drafts", INVALID),
    (CHAT, {"max_drafts": True}, 400, "max_drafts", INVALID),
    (CHAT, {"max_drafts": 1 << 31}, 400, "max_drafts", INVALID),
    (CHAT, {"cache_salt": ""}, 400, "cache_salt", INVALID),
    (CHAT, {"cache_salt": "a" * 1025}, 400, "cache_salt", INVALID),
    (CHAT, {"timeout": 0}, 400, "timeout", INVALID),
    (CHAT, {"timeout": "5"}, 400, "timeout", INVALID),
    (CHAT, {"timeout": True}, 400, "timeout", INVALID),
    (CHAT, {"timeout": 1e9}, 400, "timeout", INVALID),
    (CHAT, {"n": 0}, 400, "n", INVALID),
    (CHAT, {"n": limits.MAX_CHOICES + 1}, 400, "n", INVALID),
    (CHAT, {"temperature": -0.1}, 400, "temperature", INVALID),
    (CHAT, {"temperature": "1"}, 400, "temperature", INVALID),
    (CHAT, {"top_p": 0}, 400, "top_p", INVALID),
    (CHAT, {"top_k": -2}, 400, "top_k", INVALID),
    (CHAT, {"min_p": 1.5}, 400, "min_p", INVALID),
    (CHAT, {"presence_penalty": 3}, 400, "presence_penalty", INVALID),
    (CHAT, {"repetition_penalty": 0}, 400, "repetition_penalty", INVALID),
    (CHAT, {"seed": 2**64}, 400, "seed", INVALID),
    (CHAT, {"priority": 2**31}, 400, "priority", INVALID),
    (CHAT, {"stream": "yes"}, 400, "stream", INVALID),
    (CHAT, {"stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage", INVALID),
    (CHAT, {"stop": 5}, 400, "stop", INVALID),
    (CHAT, {"stop": ""}, 400, "stop[0]", INVALID),
    (CHAT, {"stop": ["a"] * (limits.MAX_STOP_STRINGS + 1)}, 400, "stop", INVALID),
    (CHAT, {"stop": "a" * (limits.MAX_STOP_STRING_CHARS + 1)}, 400, "stop[0]", INVALID),
    (CHAT, {"stop_token_ids": [VOCAB]}, 400, "stop_token_ids", INVALID),
    (CHAT, {"logit_bias": {"x": 1}}, 400, "logit_bias.x.[key]", INVALID),
    (CHAT, {"logit_bias": {"5": 101}}, 400, "logit_bias.5", INVALID),
    (CHAT, {"logit_bias": {str(VOCAB): 1}}, 400, "logit_bias", INVALID),
    (CHAT, {"logit_bias": {"1" * 5000: 1}}, 400, None, INVALID),
    (CHAT, {"continue_final_message": True, "add_generation_prompt": True}, 400, None, INVALID),
    (CHAT, {"tools": [{"type": "function"}]}, 400, "tools", INVALID),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice", INVALID),
    (CHAT, {"response_format": {"type": "json_object"}}, 400, "response_format", INVALID),
    (CHAT, {"logprobs": True}, 400, "logprobs", INVALID),
    (CHAT, {"audio": {}}, 400, "audio", INVALID),
    (TEXT, {"prompt": None}, 400, "prompt", INVALID),
    (TEXT, {"prompt": ""}, 400, "prompt", INVALID),
    (TEXT, {"prompt": []}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [[]]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": ["a", ""]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": ["a", 5]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [[5], "a"]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [1, True]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [1, 2.0]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": {"text": "a"}}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [VOCAB]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [-1]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [10**30]}, 400, "prompt", INVALID),
    (TEXT, {"prompt": [5] * WINDOW}, 400, "prompt", "context_length_exceeded"),
    (TEXT, {"prompt": ["a"] * (limits.MAX_PROMPTS + 1)}, 400, "prompt", INVALID),
    (TEXT, {"prompt": ["a", "b"], "n": limits.MAX_CHOICES}, 400, "n", INVALID),
    (TEXT, {"best_of": 2}, 400, "best_of", INVALID),
    (TEXT, {"suffix": "b"}, 400, "suffix", INVALID),
    (TEXT, {"echo": True}, 400, "echo", INVALID),
    (TEXT, {"logprobs": 0}, 400, "logprobs", INVALID),
    ("/tokenize", {}, 400, "messages", INVALID),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]", INVALID),
    ("/v1/nothing", {}, 404, None, None),
]


def check_body(answer: httpx.Response, status: int, param: str | None, code: str | None) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code), error
    assert error["param"] == param or param is None, error
    assert 0 < len(error["message"]) <= limits.MAX_ERROR_CHARS
    assert not any(word in error["message"] for word in ("Traceback", ".py", "/work", "site-packages"))
    if code == "context_length_exceeded":
        assert "exceeds the context window" in error["message"]


def test_bad_input_is_refused_and_a_neighbours_stream_goes_on(
    client: openai.OpenAI, port: int, backend: ScriptedBackend
) -> None:
    reply = backend.script
    backend.script = lambda asked: Script(tokens=reply(asked).tokens[:-1], pause_s=0.02)
    neighbour = iter(client.completions.create(model="tiny", prompt="a", stream=True, max_tokens=WINDOW - 1))
    heard = [next(neighbour).choices[0].text]
    thread = threading.Thread(target=lambda: heard.extend(chunk.choices[0].text for chunk in neighbour))
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        for path, change, status, param, code in BAD:
            for stream in (False, True):
                valid: dict[str, Any] = {"messages": [USER]} if path != TEXT else {"prompt": "a"}
                body = change if isinstance(change, bytes) else json.dumps({**valid, "stream": stream, **change})
                check_body(http.post(path, content=body), status, param, code)
    thread.join()
    assert len(backend.seen) == 1
    assert "".join(heard).startswith(REPLY + REPLY)
    assert backend.cancelled == []


def test_a_wrong_method_has_an_error_body_too(port: int) -> None:
    answer = httpx.get(f"http://127.0.0.1:{port}{CHAT}")
    check_body(answer, 405, None, None)
    assert answer.headers["allow"] == "POST"


def test_a_body_without_announced_length_is_counted_while_it_comes(port: int) -> None:
    def endless() -> Any:
        for _ in range(200):
            yield b"[" * 65536

    check_body(httpx.post(f"http://127.0.0.1:{port}{CHAT}", content=endless()), 400, None, INVALID)


def test_a_huge_announced_body_is_refused_unread(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{")
        raw.settimeout(5)
        assert raw.recv(65536).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "raw_bytes", [b"\x00\x01\x02\r\n\r\n", b"POST / HTTP/9\r\n\r\n", b"GET /\r\nbad header\r\n\r\n"]
)
def test_malformed_http_ends_only_its_own_connection(port: int, raw_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(raw_bytes)
        raw.settimeout(5)
        assert raw.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200


def test_a_fault_of_ours_is_a_short_500(port: int, backend: ScriptedBackend) -> None:
    def fault(generation: Generation) -> Script:
        raise ZeroDivisionError("a secret path")

    backend.script = fault
    answer = httpx.post(f"http://127.0.0.1:{port}{TEXT}", json={"prompt": "a"})
    assert answer.status_code == 500
    assert answer.json() == {
        "error": {"message": "internal error", "type": "server_error", "param": None, "code": "internal"}
    }
