"""Bounded places shared between clients, so that none of them takes all."""

from collections import Counter

from augury.errors import OverloadedError, RateLimitError

MOST_PER_FREE = 8
"""Places that a client may hold for each one that is free: alone 8 of 9, one of two 8 of 17, one of k 8 of 8 k + 1."""


class Shares:
    """Who holds how many places.

    The threshold is dynamic (Choudhury and Hahne, 1998): it falls as places are taken, so that whoever holds none finds
    one unless very many clients hold their most. Where all are one client, None, nobody else is there to leave places
    to, and it may hold all.
    """

    def __init__(self) -> None:
        self._held = Counter[bytes | None]()

    def check(self, client: bytes | None, num_free: int) -> None:
        """Raises OverloadedError, RateLimitError where ``client`` gets no place of ``num_free``."""
        if num_free <= 0:
            raise OverloadedError("too many requests are open")
        if client is not None and self._held[client] >= MOST_PER_FREE * num_free:
            raise RateLimitError(f"this client has {self._held[client]} requests open: too many")

    def take(self, client: bytes | None) -> None:
        """``client`` has one more."""
        self._held[client] += 1

    def give_back(self, client: bytes | None) -> None:
        """A place is free again."""
        assert self._held[client] > 0, "a place is given back twice"
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
