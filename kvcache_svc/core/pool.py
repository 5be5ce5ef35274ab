"""The block pool of one worker: states, reference counts, the key index and the order of eviction.

A block's state is a function of two facts, its reference count and its key:

====== ====== ======================================================
refs   key    state
====== ====== ======================================================
0      None   FREE
1      None   OPEN: one writer
>= 1   key    SEALED: immutable, referenced
0      key    CACHED: immutable, unreferenced, found by its key
====== ====== ======================================================

Block 0 is the null block: it stands for "no KV here" in a block table and is never handed out.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

NULL_BLOCK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """How many blocks are in each state; the null block is in none."""

    free: int
    open: int
    sealed: int
    cached: int


class BlockPool:
    """Blocks 1 … num_blocks - 1, handed out from FREE first, then from CACHED, least recently used first."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and one more, got {num_blocks}")
        self.num_blocks = num_blocks
        self._num_open = 0
        self._refs = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._index: dict[bytes, int] = {}
        self._indexed: dict[bytes, int] = {}
        self._unindexed: dict[bytes, None] = {}

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def find(self, key: bytes) -> int | None:
        """The block that holds the content ``key`` names."""
        return self._index.get(key)

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of these found blocks are CACHED, so that touching them lowers num_available."""
        return sum(self._refs[block] == 0 for block in blocks)

    def is_open(self, block: int) -> bool:
        return self._refs[block] == 1 and self._keys[block] is None

    def touch(self, blocks: Sequence[int]) -> None:
        """One more reference to each found block."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1

    def allocate(self, count: int) -> list[int]:
        """``count`` OPEN blocks. The caller has seen that so many are available."""
        assert count <= self.num_available
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._refs[block] = 1
        self._num_open += count
        return blocks

    def seal(self, block: int, key: bytes) -> None:
        """OPEN becomes SEALED. Where the key is findable already, this block is a duplicate, out of the index."""
        assert self.is_open(block)
        self._keys[block] = key
        self._num_open -= 1
        if key not in self._index:
            self._add_to_index(key, block)

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less to each block of a table, last block first, so that a prefix outlives its continuation."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._retire(block)

    def restore(self, index: dict[bytes, int]) -> None:
        """FREE blocks whose content is known to have survived become CACHED; impossible entries are passed over."""
        survivors = {block: key for key, block in index.items() if NULL_BLOCK < block < self.num_blocks}
        for block, key in survivors.items():
            if self._refs[block] == 0 and self._keys[block] is None and key not in self._index:
                self._keys[block] = key
                self._index[key] = block
                self._cached[block] = None
        self._free = [block for block in self._free if block not in self._cached]

    def forget(self, key: bytes) -> None:
        """Nobody finds ``key`` any more: its content proved to be another."""
        block = self._index.get(key)
        if block is None:
            return
        self._drop_from_index(key)
        if self._refs[block] == 0:
            del self._cached[block]
            self._keys[block] = None
            self._free.append(block)

    def take_index_changes(self) -> tuple[list[tuple[bytes, int]], list[bytes]]:
        """What the index gained and lost since the last call, for the registry: (key, block) pairs and keys."""
        gained, lost = list(self._indexed.items()), list(self._unindexed)
        self._indexed, self._unindexed = {}, {}
        return gained, lost

    def census(self) -> Census:
        """Counts by state. O(1)."""
        sealed = self.num_blocks - 1 - self.num_available - self._num_open
        return Census(free=len(self._free), open=self._num_open, sealed=sealed, cached=len(self._cached))

    def check(self, tables: Sequence[Sequence[int]]) -> None:
        """Raise AssertionError unless states, index and the ``tables`` of all leases agree (DESIGN §3.1, §3.2)."""
        held = [0] * self.num_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        assert held[NULL_BLOCK] == 0, "the null block is held"
        assert held == self._refs, "reference counts differ from the leases"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        for block in range(1, self.num_blocks):
            refs, key = self._refs[block], self._keys[block]
            assert (block in free) == (refs == 0 and key is None), f"block {block} and the free list"
            assert (block in self._cached) == (refs == 0 and key is not None), f"block {block} and the cached list"
            assert refs <= 1 or key is not None, f"block {block} has two writers"
        assert self._num_open == sum(map(self.is_open, range(1, self.num_blocks))), "the count of open blocks"
        for key, block in self._index.items():
            assert self._keys[block] == key, f"the index finds block {block} under another key"

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        key = self._keys[block]
        assert key is not None
        self._drop_from_index(key)
        self._keys[block] = None
        return block

    def _retire(self, block: int) -> None:
        key = self._keys[block]
        if key is not None and self._index.get(key) == block:
            self._cached[block] = None
        else:
            self._num_open -= key is None
            self._keys[block] = None
            self._free.append(block)

    def _add_to_index(self, key: bytes, block: int) -> None:
        self._index[key] = block
        self._indexed[key] = block
        self._unindexed.pop(key, None)

    def _drop_from_index(self, key: bytes) -> None:
        del self._index[key]
        self._indexed.pop(key, None)
        self._unindexed[key] = None
