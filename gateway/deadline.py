"""Deadlines: how long a client will wait for the whole of its answer."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from augury.errors import DeadlineError, InvalidRequestError

HEADER = "x-request-timeout"
"""In seconds, as the field ``timeout``."""

T = TypeVar("T")

_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


def timeout_s(header: str | None, field: float | None) -> float | None:
    """The shorter of what header and field allow; None where neither is there. Raises InvalidRequestError."""
    if header is None:
        return field
    if not _SECONDS.fullmatch(header) or not float(header):
        raise InvalidRequestError(f"{HEADER} must be a number of seconds above 0", HEADER)
    return min(float(header), float("inf") if field is None else field)


async def until(deadline: float, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The items of ``source`` that come before ``deadline`` on the event loop's clock; then raises DeadlineError.

    However it ends, ``source`` is closed.
    """
    loop = asyncio.get_running_loop()
    async with aclosing(source):
        while loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    item = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError:
                break
            yield item
    raise DeadlineError("the deadline of the request has passed")
