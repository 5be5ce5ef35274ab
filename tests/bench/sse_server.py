"""A tiny OpenAI-compatible server on a real socket, whose every answer is known beforehand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

FRAME = "data: {}\n\n"


@dataclass(kw_only=True)
class SseServer:
    """``behaviour`` names what it does with the requests that follow the first, which is the client's probe."""

    behaviour: str = "good"
    knows_ignore_eos: bool = True
    with_usage: bool = True
    gap_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0
    url: str = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SseServer"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if head.startswith("get /v1/models"):
            self._reply(writer, 200, json.dumps({"data": [{"id": "tiny"}]}))
        else:
            length = int(head.split("content-length:")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.num_open += 1
            self.most_open = max(self.most_open, self.num_open)
            await self._answer(writer, body)
            self.num_open -= 1
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        if "ignore_eos" in body and not self.knows_ignore_eos:
            return self._reply(writer, 400, json.dumps({"error": {"message": "unknown field ignore_eos"}}))
        self.bodies.append(body)
        behaviour = self.behaviour if len(self.bodies) > 1 else "good"
        if behaviour == "overloaded":
            return self._reply(writer, 503, "{}")
        self._reply(writer, 200, "")
        for index in range(body["max_tokens"]):
            await asyncio.sleep(self.gap_s)
            writer.write(FRAME.format(_piece(body, index)).encode())
            await writer.drain()
        if behaviour == "error frame":
            writer.write(FRAME.format(json.dumps({"error": {"message": "worker lost"}})).encode())
        if behaviour == "malformed":
            writer.write(FRAME.format('{"choices": [').encode())
        if self.with_usage:
            usage = {"prompt_tokens": 7, "completion_tokens": 2 * body["max_tokens"]}
            writer.write(FRAME.format(json.dumps({"choices": [], "usage": usage})).encode())
        if behaviour != "cut":
            writer.write(FRAME.format("[DONE]").encode())
        await writer.drain()
        return None

    def _reply(self, writer: asyncio.StreamWriter, status: int, body: str) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nconnection: close\r\n\r\n{body}".encode())


def _piece(body: dict[str, Any], index: int) -> str:
    # U+2028 unescaped: some line readers split there, a frame ends only at a newline.
    text = f"piece\u2028{index}"
    choice = {"text": text} if "prompt" in body else {"delta": {"role": "assistant", "content": text}}
    return json.dumps({"choices": [choice]}, ensure_ascii=False)
