"""KV memory: one storage for all groups, whose layers read and write it through their block tables."""

from collections.abc import Sequence
from random import Random

from augury.geometry import NULL_BLOCK, KvGroup
from tests.sim.model import put_out, stored

Block = list[int]


class Storage:
    """``places[place][block]`` holds the slots of one layer of whichever group has the block, which is as many as the
    largest block size asks. Fresh memory holds garbage, the null block zeros.
    """

    def __init__(self, num_places: int, num_blocks: int, num_slots: int, rng: Random) -> None:
        self._num_slots = num_slots
        self.places: list[list[Block]] = [
            [[rng.getrandbits(32)] * num_slots for _ in range(num_blocks)] for _ in range(num_places)
        ]
        self.clear(NULL_BLOCK)

    def clear(self, block: int) -> None:
        """``block`` has a new writer: what it held is gone."""
        for blocks in self.places:
            blocks[block] = [0] * self._num_slots


class Layer:
    """Layer ``number`` of the model, of ``group``, in its place of the storage."""

    def __init__(self, number: int, group: KvGroup, blocks: list[Block]) -> None:
        self.number = number
        self._group = group
        self._blocks = blocks

    def slots(self, block: int) -> Block:
        return self._blocks[block][: self._group.block_size]

    def run(self, table: Sequence[int], start: int, below: Sequence[int]) -> list[int]:
        """Write the rows from ``start`` on and return their outputs; each reads what its window reaches."""
        size, window, outputs = self._group.block_size, self._group.window, list[int]()
        seen = self.read(table, 0 if window is None else max(0, start - window + 1), start)
        for position, value in enumerate(below, start):
            own = stored(self.number, value)
            self._blocks[table[position // size]][position % size] = own
            seen.append(own)
            outputs.append(put_out(value, seen if window is None else seen[-window:]))
        return outputs

    def read(self, table: Sequence[int], start: int, end: int) -> list[int]:
        """The values of positions ``start`` to ``end - 1``."""
        size = self._group.block_size
        first = start // size
        values = [value for block in table[first : -(-end // size)] for value in self._blocks[block][:size]]
        return values[start - first * size : end - first * size]
