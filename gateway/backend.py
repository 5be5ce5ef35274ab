"""What the gateway needs of whoever generates tokens."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from augury.types import Delta, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The backend's state. ``max_model_len`` (tokens) and ``vocab_size`` are None while no worker is there."""

    max_model_len: int | None
    vocab_size: int | None
    num_ready_workers: int
    num_running: int
    num_waiting: int


class Backend(Protocol):
    """Generates tokens. The gateway holds prompt and emitted tokens, so that a request can be continued elsewhere."""

    def generate(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """The tokens of one request as they come; the last delta, and only the last, has ``ended``.

        Closing the generator early cancels the request. What waited while nobody read comes as one delta.
        Raises NoWorkerError when the backend is lost, OverloadedError when it takes no more requests.
        """
        ...

    async def describe(self) -> Description:
        """Raises NoWorkerError when the backend cannot be reached."""
        ...
