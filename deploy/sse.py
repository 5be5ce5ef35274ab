"""What a server-sent event stream carries, read by its clients here: `augury chat`, `bench serve` and `chaos`."""

from collections.abc import AsyncIterator

import httpx


async def data_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each event as it arrives; events of more than one line are not ours."""
    # Not Response.aiter_lines: it splits at U+2028 and U+0085 too, which may stand in an event's JSON.
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()
