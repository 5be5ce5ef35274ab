"""What the gateway needs of whoever generates tokens."""

from collections.abc import AsyncGenerator
from typing import Protocol

from augury.types import Delta, Description, Generation


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


def num_ready_workers(description: Description) -> int:
    """Workers that take requests."""
    return sum(worker.ready for worker in description.workers)


def flaws(description: Description) -> list[str]:
    """What does not work as it should though requests are answered, in words for people."""
    num_silent = sum(not (worker.ready or worker.draining) for worker in description.workers)
    silent = f"{num_silent} of {len(description.workers)} workers take no requests"
    return [silent, *description.flaws] if num_silent else [*description.flaws]


def num_running(description: Description) -> int:
    """Requests in a worker's batch."""
    return sum(worker.num_running for worker in description.workers)


def num_waiting(description: Description) -> int:
    """Requests that wait, for one worker or for any."""
    return sum(worker.num_waiting for worker in description.workers) + description.num_parked
