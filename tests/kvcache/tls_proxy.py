"""Ends TLS in front of a server that has none, under a certificate made for the occasion."""

import asyncio
import ssl
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 with that of its authority behind it, and its key."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, private_key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in (*issued.cert_chain_pems, authority.cert_pem)))
    private_key.write_bytes(issued.private_key_pem.bytes())
    return certificate, private_key


class TlsProxy:
    """Forwards what comes over TLS to ``port`` in the clear."""

    def __init__(self, port: int, certificate: Path, private_key: Path) -> None:
        self._far_port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, private_key)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._far_port)
        pumps = [asyncio.create_task(_pump(reader, far_writer)), asyncio.create_task(_pump(far_reader, writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        writer.transport.abort()
        far_writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(1 << 16):
            sink.write(chunk)
            await sink.drain()
    except ConnectionError:
        return
