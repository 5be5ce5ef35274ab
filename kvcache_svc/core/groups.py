"""KV groups: which blocks layers of one kind need, and which cached blocks serve as a prefix hit."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol


class KvGroup(Protocol):
    """Layers that share one block table."""

    def num_blocks(self, num_slots: int) -> int:
        """Length of a block table that holds ``num_slots`` slots."""

    def longest_hit(self, keys: Sequence[bytes], find: Callable[[bytes], int | None]) -> list[int]:
        """The blocks of the longest usable cached prefix; ``keys[i]`` names block i's content."""


class FullAttention:
    """Every position attends to all before it: a hit is the run of found keys from the left."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def num_blocks(self, num_slots: int) -> int:
        return -(-num_slots // self.block_size)

    def longest_hit(self, keys: Sequence[bytes], find: Callable[[bytes], int | None]) -> list[int]:
        return [block for block in takewhile(lambda found: found is not None, map(find, keys)) if block is not None]
