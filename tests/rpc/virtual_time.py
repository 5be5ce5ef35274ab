"""An event loop whose clock jumps to the next timer whenever nothing can run, so that hours pass in milliseconds."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Raises RuntimeError where every task waits and no timer is set: nothing could ever happen again."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def skip(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        self._now += max(seconds, 0.0)


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.skip(timeout)
        return super().select(0)


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on virtual time that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
