"""KV memory of one layer, read and written through block tables."""

from collections.abc import Sequence
from random import Random

from tests.sim.plan import Memory


class Slots:
    """A *slot* is ``block * block_size + offset``; fresh memory holds garbage."""

    def __init__(self, memory: Memory, rng: Random) -> None:
        self._block_size = memory.block_size
        self._values = [rng.getrandbits(32) for _ in range(memory.num_blocks * memory.block_size)]

    def block(self, block: int) -> list[int]:
        """The values of one block."""
        return self._values[block * self._block_size : (block + 1) * self._block_size]

    def read(self, blocks: Sequence[int], end: int) -> list[int]:
        """The values of positions 0 … end - 1."""
        used = blocks[: -(-end // self._block_size)]
        return [value for block in used for value in self.block(block)][:end]

    def write(self, blocks: Sequence[int], position: int, value: int) -> None:
        index, offset = divmod(position, self._block_size)
        self._values[blocks[index] * self._block_size + offset] = value
