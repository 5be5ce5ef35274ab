"""Several asynchronous streams as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[list[T], None]:
    """Items of all streams as they come, at most one of each, those that are ready together in one list.

    Ends when all have ended. The first error of a stream is raised. However it ends, every stream is closed.
    """
    if len(streams) == 1:  # by far the most frequent case, at half the cost
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield [item]
        return
    waiting = {_next(stream): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ready = []
            for task in done:
                source = waiting.pop(task)
                if (result := task.result()) is not None:
                    ready.append(result)
                    waiting[_next(source)] = source
            if ready:
                yield ready
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for source in streams:
            await source.aclose()


def _next(stream: AsyncGenerator[T, None]) -> asyncio.Task[T | None]:
    async def advance() -> T | None:
        return await anext(stream, None)

    return asyncio.create_task(advance())
