"""Data of events, however they are cut on their way and whatever stands in them."""

import json
from collections.abc import AsyncIterator

import httpx
from hypothesis import given
from hypothesis import strategies as st

from deploy.sse import data_of

odd = st.sampled_from("\u2028\u2029\x85\x0b\x0c\x1c")
texts = st.lists(st.text(odd | st.characters(codec="utf-8")), max_size=4)


@given(texts=texts, size=st.integers(1, 9))
async def test_every_text_arrives_whole(texts: list[str], size: int) -> None:
    stream = b": hello\n\n"
    for text in texts:
        stream += b"data: " + json.dumps(text, ensure_ascii=False).encode() + b"\n\n"

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    response = httpx.Response(200, content=pieces())
    assert [json.loads(data) async for data in data_of(response)] == texts
