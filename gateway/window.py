"""What the workers take, known without asking the scheduler for every request."""

import asyncio
import time
from dataclasses import dataclass

from augury.errors import NoWorkerError
from gateway.backend import Backend

_FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``max_model_len`` tokens of prompt and answer together, ids below ``vocab_size``."""

    max_model_len: int
    vocab_size: int


class WindowSource:
    """Asks the backend at most once a second, and keeps the last answer while no worker is there."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._window: Window | None = None
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def current(self) -> Window:
        """Raises NoWorkerError where no worker was there yet."""
        arrived = time.monotonic()
        async with self._asking:
            # Whoever waited for an answer shares it, also where it was none.
            if self._asked_at < (arrived if self._window is None else arrived - _FRESH_S):
                self._window = await self._ask() or self._window
                self._asked_at = time.monotonic()
        if self._window is None:
            raise NoWorkerError("no worker is ready")
        return self._window

    async def _ask(self) -> Window | None:
        try:
            description = await self._backend.describe()
        except NoWorkerError:
            return None
        if description.max_model_len is None or description.vocab_size is None:
            return None
        return Window(max_model_len=description.max_model_len, vocab_size=description.vocab_size)
