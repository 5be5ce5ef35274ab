"""The two endpoints that generate: /v1/chat/completions and /v1/completions."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from augury import limits
from augury.errors import ModelNotFoundError
from gateway.backend import Backend
from gateway.body import read_body
from gateway.deadline import HEADER, timeout_s
from gateway.door import client_of
from gateway.generations import generations
from gateway.isolation import cache_salt
from gateway.metrics import Metrics
from gateway.model import ServedModel
from gateway.passage import passage_of
from gateway.prompts import Tokens, chat_prompt, completion_prompts
from gateway.replies import ChatReply, CompletionReply, Piece, Reply
from gateway.run import Job, Run
from gateway.schema import ChatRequest, CompletionRequest, StreamOptions, parse
from gateway.sse import EventStream, event, unless_gone
from gateway.window import WindowSource

_log = logging.getLogger(__name__)
_UNSAFE_IN_HEADER = re.compile(r"[^\w.,-]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """What tells one endpoint from the other."""

    id_prefix: str
    schema: type[Any]
    prompts: Callable[[Any, ServedModel], list[Tokens]]
    reply: type[Reply]


_CHAT = _Endpoint(
    id_prefix="chatcmpl-",
    schema=ChatRequest,
    prompts=lambda request, model: [chat_prompt(request, model)],
    reply=ChatReply,
)
_COMPLETIONS = _Endpoint(
    id_prefix="cmpl-",
    schema=CompletionRequest,
    prompts=lambda request, model: completion_prompts(request.prompt, model),
    reply=CompletionReply,
)


class Endpoints:
    """Handlers of one model. ``shared_salt`` is the cache salt that is open to all clients.

    The text of prompts is logged with ``log_prompts`` only.
    """

    def __init__(
        self, model: ServedModel, backend: Backend, metrics: Metrics, shared_salt: str | None, log_prompts: bool
    ) -> None:
        self._model = model
        self._backend = backend
        self._metrics = metrics
        self._shared_salt = shared_salt
        self._log_prompts = log_prompts
        self._windows = WindowSource(backend)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._answer(_CHAT, request)

    async def completions(self, request: Request) -> Response:
        """Continue one or more prompts."""
        return await self._answer(_COMPLETIONS, request)

    async def _answer(self, endpoint: _Endpoint, request: Request) -> Response:
        started, clock = time.perf_counter(), asyncio.get_running_loop().time()
        body = await read_body(request)
        # In a thread, so that a long prompt does not keep other streams waiting.
        asked, unknown, prompts = await asyncio.to_thread(self._read, endpoint, body)
        reply_id = endpoint.id_prefix + uuid4().hex
        client = client_of(request)
        salt = cache_salt(client, asked.cache_salt, self._shared_salt)
        timeout = timeout_s(request.headers.get(HEADER), asked.timeout)
        window = await self._windows.current()
        passage = passage_of(request)
        made = generations(asked, prompts, self._model.eos_token_ids, window, passage.request_id, salt)
        trace = passage.span.trace
        wanted = [replace(each, timeout_s=timeout, trace=trace, client=client) for each in made]
        if self._log_prompts:
            _log.info("prompts", extra={"prompts": [self._model.decode(prompt) for prompt in prompts]})
        deadline = None if timeout is None else clock + timeout
        job = Job(
            generations=wanted,
            choices_per_prompt=asked.n,
            stops=asked.stop,
            deadline=deadline,
            report=passage.report,
        )
        run = Run(job, self._model, self._backend, self._metrics, started)
        reply = endpoint.reply(reply_id, self._model.name)
        if asked.stream:
            return EventStream(_events(run, reply, asked.stream_options), _warning(unknown))
        choices = await unless_gone(request.receive, _collect(run, len(wanted)))
        content = msgspec.json.encode(reply.whole(choices, run.usage()))
        return Response(content, headers=_warning(unknown), media_type="application/json")

    def _read(self, endpoint: _Endpoint, body: bytes) -> tuple[Any, list[str], list[Tokens]]:
        asked, unknown = parse(endpoint.schema, body)
        check_model(asked.model, self._model)
        return asked, unknown, endpoint.prompts(asked, self._model)


def check_model(name: str | None, model: ServedModel) -> None:
    """Raises ModelNotFoundError where ``name`` is given and another than the served one."""
    if name is not None and name != model.name:
        raise ModelNotFoundError(f"the model {name[:100]!r} is not served here", "model")


async def _events(run: Run, reply: Reply, options: StreamOptions) -> AsyncGenerator[bytes, None]:
    begun: set[int] = set()
    async with aclosing(run.pieces()) as batches:
        async for batch in batches:
            usage = run.usage() if options.continuous_usage_stats else None if options.include_usage else UNSET
            shown = [piece for piece in batch if piece.text or piece.finish_reason or piece.index not in begun]
            if shown:
                yield b"".join(
                    event(reply.chunk(piece, is_first=piece.index not in begun, usage=usage)) for piece in shown
                )
            begun.update(piece.index for piece in shown)
    if options.include_usage:
        yield event(reply.usage_chunk(run.usage()))


async def _collect(run: Run, num_choices: int) -> list[Piece]:
    """Each choice as one piece."""
    texts: Sequence[list[str]] = [[] for _ in range(num_choices)]
    reasons: list[str | None] = [None] * num_choices
    async with aclosing(run.pieces()) as batches:
        async for batch in batches:
            for piece in batch:
                texts[piece.index].append(piece.text)
                reasons[piece.index] = piece.finish_reason
    return [
        Piece(index=index, text="".join(parts), finish_reason=reason)
        for index, (parts, reason) in enumerate(zip(texts, reasons, strict=True))
    ]


def _warning(unknown: list[str]) -> dict[str, str]:
    """The header that names fields which had no effect."""
    if not unknown:
        return {}
    names = _UNSAFE_IN_HEADER.sub("?", ",".join(unknown))[: limits.MAX_ERROR_CHARS]
    return {"warning": f'299 augury "unknown fields ignored: {names}"'}
