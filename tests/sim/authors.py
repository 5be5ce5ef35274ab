"""What is known of a request apart from what the services are told."""

from typing import Protocol

from augury.types import NewRequest
from tests.sim.oracle import Text


class Authors(Protocol):
    """Requests by handle, those that have ended too."""

    def salt(self, handle: int) -> bytes: ...

    def right(self, new: NewRequest) -> Text: ...
