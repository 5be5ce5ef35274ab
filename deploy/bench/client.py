"""A closed loop of streaming requests to an OpenAI-compatible server."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx
import msgspec

from deploy.bench.stats import Answered, Failed, Result
from deploy.sse import data_of

Api = Literal["chat", "completions"]
_PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

NO_TEXT = "no text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where requests go. ``timeout_s`` is the longest silence on a connection."""

    base_url: str
    api_key: str | None
    timeout_s: float

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key is not None else {}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.base_url, headers=headers, timeout=self.timeout_s, limits=limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked. ``ignore_eos`` wants answers of full length, which not every server can give."""

    api: Api
    model: str
    num_output: int
    ignore_eos: bool = True

    def body(self, prompt: str) -> dict[str, Any]:
        if self.api == "chat":
            question: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        else:
            question = {"prompt": prompt}
        length = {"max_tokens": self.num_output} | ({"ignore_eos": True} if self.ignore_eos else {})
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, "temperature": 0} | question | length | stream


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None

    def has_text(self) -> bool:
        return bool(self.text or (self.delta and (self.delta.content or self.delta.reasoning_content)))


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Frame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _ModelCard(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_ModelCard]


async def first_model(server: Server) -> str:
    """The first model listed. Raises ValueError where there is none, httpx.HTTPError where the server fails."""
    async with server.client() as client:
        response = await client.get("/v1/models")
        response.raise_for_status()
    try:
        return msgspec.json.decode(response.content, type=_Models).data[0].id
    except (msgspec.DecodeError, IndexError):
        raise ValueError(f"{server.base_url} lists no model; name one") from None


async def probe(server: Server, ask: Ask) -> Ask:
    """``ask`` as far as the server understands it: without ``ignore_eos`` where that is refused. One token is spent.

    Raises ValueError where the server refuses a plain request too.
    """
    async with server.client() as client:
        result = await stream_answer(client, replace(ask, num_output=1), "Hello")
    if isinstance(result, Answered) or result.reason == NO_TEXT:
        return ask
    if ask.ignore_eos and result.reason in ("HTTP 400", "HTTP 422"):
        return await probe(server, replace(ask, ignore_eos=False))
    raise ValueError(f"{server.base_url} does not answer: {result.reason} {result.detail or ''}".rstrip())


async def closed_loop(
    server: Server, ask: Ask, prompts: Sequence[str], *, concurrency: int, on_done: Callable[[], object]
) -> list[Result]:
    """Asks all ``prompts``, ``concurrency`` at any time: a stream sends its next one when it has its answer."""
    waiting = iter(prompts)
    results: list[Result] = []

    async def stream() -> None:
        for prompt in waiting:
            results.append(await stream_answer(client, ask, prompt))
            on_done()

    async with server.client() as client, asyncio.TaskGroup() as streams:
        for _ in range(concurrency):
            streams.create_task(stream())
    return results


async def stream_answer(client: httpx.AsyncClient, ask: Ask, prompt: str) -> Result:
    """One streamed answer. Whatever goes wrong on the way is a result too."""
    sent = time.perf_counter()
    try:
        async with client.stream("POST", _PATHS[ask.api], json=ask.body(prompt)) as response:
            if response.status_code != httpx.codes.OK:
                detail = (await response.aread()).decode(errors="replace")[:300]
                return Failed(reason=f"HTTP {response.status_code}", detail=detail)
            return await _read(response, sent)
    except httpx.HTTPError as error:
        return Failed(reason=type(error).__name__)


async def _read(response: httpx.Response, sent: float) -> Result:
    times: list[float] = []
    usage: _Usage | None = None
    async for data in data_of(response):
        if data == b"[DONE]":
            return _answer(sent, times, usage)
        try:
            frame = msgspec.json.decode(data, type=_Frame)
        except msgspec.DecodeError:
            return Failed(reason="malformed frame")
        if frame.error is not None:
            return Failed(reason="error frame")
        usage = frame.usage or usage
        if any(choice.has_text() for choice in frame.choices):
            times.append(time.perf_counter())
    return Failed(reason="stream cut short")


def _answer(sent: float, times: Sequence[float], usage: _Usage | None) -> Result:
    if not times:
        return Failed(reason=NO_TEXT)
    return Answered(
        sent=sent,
        first_token=times[0],
        last_token=times[-1],
        num_prompt=usage.prompt_tokens if usage else None,
        num_output=max(usage.completion_tokens, 1) if usage else len(times),
    )
