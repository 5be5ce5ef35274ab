"""Merged streams lose nothing, keep each stream's order, and leave no stream open."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.merge import merge

Item = tuple[int, int]


class Sources:
    """Streams that count who is open; stream ``i`` yields (i, 0), (i, 1) …, and fails after ``fail_at`` items."""

    def __init__(self, lengths: list[int], fail_at: int | None = None) -> None:
        self.open: set[int] = set()
        self.streams = [self._stream(index, length, fail_at) for index, length in enumerate(lengths)]

    async def _stream(self, index: int, length: int, fail_at: int | None) -> AsyncGenerator[Item, None]:
        self.open.add(index)
        try:
            for number in range(length):
                await asyncio.sleep(0.001 * ((index + number) % 2))
                if number == fail_at:
                    raise LookupError(index)
                yield (index, number)
        finally:
            self.open.discard(index)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_every_item_comes_once_and_in_its_streams_order(lengths: list[int]) -> None:
    async def collect() -> list[Item]:
        return [item async for batch in merge(Sources(lengths).streams) for item in batch]

    items = asyncio.run(collect())
    for index, length in enumerate(lengths):
        assert [item for item in items if item[0] == index] == [(index, number) for number in range(length)]


@pytest.mark.parametrize("num_streams", [1, 4])
async def test_leaving_early_closes_every_stream(num_streams: int) -> None:
    sources = Sources([9] * num_streams)
    async with aclosing(merge(sources.streams)) as batches:
        await anext(batches)
        assert sources.open
    assert not sources.open


@pytest.mark.parametrize("num_streams", [1, 4])
async def test_an_error_is_raised_once_all_streams_are_closed(num_streams: int) -> None:
    sources = Sources([9] * num_streams, fail_at=2)
    with pytest.raises(LookupError):
        async for _ in merge(sources.streams):
            pass
    assert not sources.open


@pytest.mark.parametrize("num_streams", [1, 4])
async def test_cancelling_the_reader_closes_every_stream(num_streams: int) -> None:
    sources = Sources([10_000] * num_streams)

    async def read() -> None:
        async with aclosing(merge(sources.streams)) as batches:
            async for _ in batches:
                pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.02)
    assert len(sources.open) == num_streams
    task.cancel()
    await asyncio.wait([task])
    assert not sources.open
