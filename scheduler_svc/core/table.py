"""One block table of a running request: the blocks that it leases in one KV group."""

from collections.abc import Sequence
from dataclasses import dataclass

from augury.geometry import NULL_BLOCK


@dataclass(slots=True, eq=False, kw_only=True)
class Table:
    """``blocks[i]`` holds the group's i-th block of tokens.

    The first ``num_dead`` entries are never looked at again: no window reaches them, and their blocks may belong to
    somebody else. The first ``num_hit`` were found in the cache, the dead apart. From ``first_own`` on the request
    seals, and has sealed up to ``num_sealed``; what lies between hit and own is not exact (Granted).
    """

    blocks: list[int]
    num_dead: int
    num_hit: int
    first_own: int
    num_sealed: int

    @classmethod
    def granted(cls, blocks: Sequence[int], num_hit: int, first_own: int) -> "Table":
        """A new table; null entries at its start lie left of what a window needs."""
        num_dead = next((i for i, block in enumerate(blocks) if block != NULL_BLOCK), len(blocks))
        return cls(blocks=list(blocks), num_dead=num_dead, num_hit=num_hit, first_own=first_own, num_sealed=first_own)

    @property
    def num_held(self) -> int:
        """Real blocks."""
        return len(self.blocks) - self.num_dead

    @property
    def num_own(self) -> int:
        """Real blocks that were not hit."""
        return self.num_held - len(self.hits)

    @property
    def live(self) -> tuple[int, ...]:
        """The table with the null block for its dead entries."""
        return (NULL_BLOCK,) * self.num_dead + tuple(self.blocks[self.num_dead :])

    @property
    def hits(self) -> range:
        """Entries found in the cache and still there."""
        return range(self.num_dead, max(self.num_hit, self.num_dead))

    @property
    def sealed(self) -> list[int]:
        """Entries with a sealed block: hit, or sealed by the request."""
        return [*self.hits, *range(max(self.first_own, self.num_dead), self.num_sealed)]
