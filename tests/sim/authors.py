"""What is known of a request apart from what the services are told."""

from typing import Protocol

from augury.types import NewRequest
from tests.sim.oracle import Text


class Authors(Protocol):
    """All requests, those that have ended too, and those of a scheduler that is gone."""

    def salt(self, new: NewRequest) -> bytes: ...

    def right(self, new: NewRequest) -> Text: ...
