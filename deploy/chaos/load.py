"""Streams of clients: each asks one gateway, and what it was told and when is kept."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from deploy.chaos.wishes import Wish
from deploy.sse import data_of

SILENCE_SECONDS = 60.0
"""A stream that says nothing for so long has failed."""

_AGAIN_SECONDS = 0.2
_MAX_TRIES = 50


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came for the wish of number ``wish``. ``times`` of each choice: its request, its deltas and its end,
    on the monotonic clock. ``num_tries`` counts requests that a gateway about to end turned away.
    """

    wish: int
    texts: list[str]
    reasons: list[str | None]
    times: list[list[float]]
    num_tokens: int | None = None
    error: str | None = None
    num_tries: int = 1

    @property
    def told(self) -> tuple[Any, ...]:
        """All that must be the same each time."""
        return self.texts, self.reasons, self.num_tokens


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def shown(self) -> str:
        return self.text or (self.delta and self.delta.content) or ""


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Frame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True, kw_only=True)
class Load:
    """``urls`` tells the gateways that take requests now; ``answers`` grow while it runs."""

    wishes: Sequence[Wish]
    urls: Callable[[], list[str]]
    answers: list[Answer] = field(default_factory=list)
    num_open: int = 0

    async def run(self, num_streams: int, enough: Callable[[], bool]) -> None:
        """Wish after wish, again from the first after the last, ``num_streams`` at any time, until it is ``enough``."""
        numbers = itertools.cycle(range(len(self.wishes)))

        async def stream() -> None:
            while not enough():
                self.num_open += 1
                self.answers.append(await self._ask(client, next(numbers)))
                self.num_open -= 1

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=SILENCE_SECONDS, limits=limits) as client, asyncio.TaskGroup() as streams:
            for _ in range(num_streams):
                streams.create_task(stream())

    async def _ask(self, client: httpx.AsyncClient, number: int) -> Answer:
        wish, sent = self.wishes[number], time.monotonic()
        for num_tries in itertools.count(1):
            answer = _empty(number, wish.num_choices, sent, num_tries)
            try:
                gateways = self.urls()
                url = gateways[(number + num_tries) % len(gateways)]
                headers = {"x-request-id": f"wish-{number}-{sent:.2f}"}
                async with client.stream("POST", url + wish.path, json=wish.body, headers=headers) as response:
                    if response.status_code == httpx.codes.OK:
                        await _read(response, answer)
                        return answer
                    answer.error = f"HTTP {response.status_code}: {(await response.aread()).decode(errors='replace')}"
                    if "shutting down" not in answer.error:
                        return answer
            except httpx.ConnectError as error:
                answer.error = f"{url}: {error}"
            except httpx.HTTPError as error:
                answer.error = f"{url}: {type(error).__name__} {error}"
                return answer
            if num_tries == _MAX_TRIES:
                return answer
            await asyncio.sleep(_AGAIN_SECONDS)
        raise AssertionError("unreachable")


def _empty(number: int, num_choices: int, sent: float, num_tries: int) -> Answer:
    return Answer(
        wish=number,
        texts=[""] * num_choices,
        reasons=[None] * num_choices,
        times=[[sent] for _ in range(num_choices)],
        num_tries=num_tries,
    )


async def _read(response: httpx.Response, answer: Answer) -> None:
    async for data in data_of(response):
        now = time.monotonic()
        if data == b"[DONE]":
            if answer.error is None and None in answer.reasons:
                answer.error = "a choice has no end"
            return
        frame = msgspec.json.decode(data, type=_Frame)
        if frame.error is not None:
            answer.error = f"error event: {frame.error}"
        for choice in frame.choices:
            answer.texts[choice.index] += choice.shown
            answer.times[choice.index].append(now)
            answer.reasons[choice.index] = choice.finish_reason or answer.reasons[choice.index]
        if frame.usage is not None:
            answer.num_tokens = frame.usage.completion_tokens
    answer.error = "the stream was cut short"
