"""A chat client for any OpenAI-compatible address: what `augury chat` and the greeting after a start use."""

import argparse
import os
import sys
import time
from collections.abc import AsyncGenerator, Sequence

import anyio
import httpx
import msgspec

from deploy.sse import data_of

Messages = list[dict[str, str]]

GREETING = "Say hello to a new user in one short sentence."

KEY_VARIABLE = "OPENAI_API_KEY"
"""Where OpenAI's own clients find their key."""


class ChatError(Exception):
    """The server answered with an error."""


async def stream(
    client: httpx.AsyncClient, model: str, messages: Messages, temperature: float
) -> AsyncGenerator[str, None]:
    """The answer's pieces as they come. Raises ChatError, httpx.HTTPError."""
    body = {"model": model, "messages": messages, "temperature": temperature, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            raise ChatError(_message(await response.aread()))
        async for data in data_of(response):
            if data == b"[DONE]":
                continue
            chunk = msgspec.json.decode(data)
            if "error" in chunk:
                raise ChatError(chunk["error"]["message"])
            for choice in chunk["choices"]:
                yield choice["delta"].get("content") or ""


def connect(url: str, api_key: str | None) -> httpx.AsyncClient:
    """A client of the server at ``url`` that waits as long as an answer takes."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=None)


async def greet(url: str, model: str, api_key: str | None) -> None:
    """One question and its answer on standard output, with the time it took. Raises ChatError, httpx.HTTPError."""
    print(f"\n> {GREETING}", flush=True)
    started = time.perf_counter()
    async with connect(url, api_key) as client:
        async for piece in stream(client, model, [{"role": "user", "content": GREETING}], 0.0):
            print(piece, end="", flush=True)
    print(f"\n({time.perf_counter() - started:.1f} s)\n", flush=True)


def main(argv: Sequence[str]) -> int:
    """Chat in the terminal until end of file."""
    parser = argparse.ArgumentParser(prog="augury chat", description="Chat with a running server; Ctrl-D ends.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
    parser.add_argument("--api-key", default=os.environ.get(KEY_VARIABLE), help=f"default: ${KEY_VARIABLE}")
    parser.add_argument("--model", help="default: the first one the server lists")
    parser.add_argument("--temperature", type=float, default=0.7, help="default: %(default)s")
    options = parser.parse_args(argv)
    try:
        anyio.run(_chat, options)
    except (ChatError, httpx.HTTPError) as error:
        print(f"augury chat: {error or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def _chat(options: argparse.Namespace) -> None:
    messages: Messages = []
    async with connect(options.url, options.api_key) as client:
        model = options.model or await _first_model(client)
        while question := await anyio.to_thread.run_sync(_ask):
            messages.append({"role": "user", "content": question})
            answer = ""
            async for piece in stream(client, model, messages, options.temperature):
                answer += piece
                print(piece, end="", flush=True)
            print()
            messages.append({"role": "assistant", "content": answer})


async def _first_model(client: httpx.AsyncClient) -> str:
    response = await client.get("/v1/models")
    if response.is_error:
        raise ChatError(_message(response.content))
    name: str = response.json()["data"][0]["id"]
    return name


def _ask() -> str:
    try:
        return input("> ")
    except EOFError:
        print()
        return ""


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
