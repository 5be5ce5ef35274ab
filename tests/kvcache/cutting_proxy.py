"""A TCP proxy that loses connections: what was asked, or the answer to what was done."""

import asyncio
import random
from types import TracebackType
from typing import Self


class CuttingProxy:
    """Forwards to ``port``; each chunk, either way, is with probability ``cut`` lost together with its connection."""

    def __init__(self, port: int, seed: int) -> None:
        self.cut = 0.0
        self.num_cuts = 0
        self._port = port
        self._rng = random.Random(seed)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        writer.transport.abort()
        far_writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(1 << 16):
                if self._rng.random() < self.cut:
                    self.num_cuts += 1
                    return
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            return
