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

Block 0 is the null block: it stands for "no KV here" in a block table, is never handed out and never counted.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from augury.geometry import NULL_BLOCK
from kvcache_svc.core.history import History
from kvcache_svc.core.inspection import Census


class BlockPool:
    """Blocks 1 … num_blocks - 1, handed out from FREE first, then from CACHED, least recently used first.

    ``now`` (seconds, monotonic) is the moment of what is under way; whoever calls sets it.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1, now: float = 0.0) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and one more, got {num_blocks}")
        self.num_blocks = num_blocks
        self.now = now
        self.history = History()
        self.num_open = [0] * num_groups
        self.num_sealed = [0] * num_groups
        self._refs = [0] * num_blocks
        self._groups = bytearray(num_blocks)
        self._keys: list[bytes | None] = [None] * num_blocks
        self._born = array("d", bytes(8 * num_blocks))
        self._free = array("i", range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached: OrderedDict[int, float] = OrderedDict()
        self._index: dict[bytes, int] = {}
        self._indexed: dict[bytes, int] = {}
        self._unindexed: dict[bytes, None] = {}
        self.find: Callable[[bytes], int | None] = self._index.get
        """The block that holds the content a key names."""

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these found blocks are CACHED, so that touching them lowers num_available."""
        refs = self._refs
        return sum([block != NULL_BLOCK and refs[block] == 0 for block in blocks])

    def is_open(self, block: int) -> bool:
        return self._refs[block] == 1 and self._keys[block] is None

    def touch(self, blocks: Iterable[int], group: int = 0) -> None:
        """One more reference to each found block of a table."""
        refs = self._refs
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if refs[block] == 0:
                del self._cached[block]
                self._hold(block, group)
            refs[block] += 1

    def allocate(self, count: int, group: int = 0) -> list[int]:
        """``count`` OPEN blocks. The caller has seen that so many are available."""
        assert count <= self.num_available
        blocks = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._refs[block] = 1
            self._groups[block] = group
            blocks.append(block)
        self.num_open[group] += count
        return blocks

    def seal(self, block: int, key: bytes) -> None:
        """OPEN becomes SEALED. Where the key is findable already, this block is a duplicate, out of the index."""
        assert self.is_open(block)
        group = self._groups[block]
        self.num_open[group] -= 1
        self.num_sealed[group] += 1
        self._name(block, key)
        if key not in self._index:
            self._add_to_index(key, block)

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less to each block of a table, last block first, so that a prefix outlives its continuation."""
        refs, idle = self._refs, []
        for block in reversed(blocks):
            if block != NULL_BLOCK:
                refs[block] -= 1
                if refs[block] == 0:
                    idle.append(block)
        self._retire(idle)

    def adopt(self, tables: Iterable[Sequence[Sequence[int]]], keys: Mapping[int, bytes]) -> None:
        """A pool that has handed out nothing yet finds leases in place, with the block table of each group.

        Their blocks are SEALED under their ``keys``, the others OPEN.
        """
        for lease in tables:
            for group, table in enumerate(lease):
                for block in table:
                    if block != NULL_BLOCK:
                        self._adopt(block, group, keys.get(block))
        self._free = array("i", [block for block in self._free if self._refs[block] == 0])

    def restore(self, index: Mapping[bytes, int]) -> None:
        """FREE blocks whose content is known to have survived become CACHED; impossible entries are passed over."""
        survivors = {block: key for key, block in index.items() if NULL_BLOCK < block < self.num_blocks}
        for block, key in survivors.items():
            if self._refs[block] == 0 and self._keys[block] is None and key not in self._index:
                self._name(block, key)
                self._index[key] = block
                self._cached[block] = self.now
        self._free = array("i", [block for block in self._free if block not in self._cached])

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
        """Counts by state. O(groups)."""
        return Census(
            free=len(self._free), open=sum(self.num_open), sealed=sum(self.num_sealed), cached=len(self._cached)
        )

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless states, index and the ``tables`` of all leases agree (DESIGN §3.1, §3.2)."""
        held = [0] * self.num_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        held[NULL_BLOCK] = 0
        assert held == self._refs, "reference counts differ from the leases"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        num_open, num_sealed = [0] * len(self.num_open), [0] * len(self.num_sealed)
        for block in range(1, self.num_blocks):
            refs, key = self._refs[block], self._keys[block]
            assert (block in free) == (refs == 0 and key is None), f"block {block} and the free list"
            assert (block in self._cached) == (refs == 0 and key is not None), f"block {block} and the cached list"
            assert refs <= 1 or key is not None, f"block {block} has two writers"
            if refs:
                (num_open if key is None else num_sealed)[self._groups[block]] += 1
        assert (num_open, num_sealed) == (self.num_open, self.num_sealed), "the counts of open and sealed blocks"
        assert NULL_BLOCK not in free | self._cached.keys() | set(self._index.values()), "the null block is in use"
        for key, block in self._index.items():
            assert self._keys[block] == key, f"the index finds block {block} under another key"

    def _hold(self, block: int, group: int) -> None:
        self._groups[block] = group
        self.num_sealed[group] += 1

    def _adopt(self, block: int, group: int, key: bytes | None) -> None:
        self._refs[block] += 1
        if self._refs[block] > 1:
            return
        self._groups[block] = group
        self.num_open[group] += 1
        if key is not None:
            self.seal(block, key)

    def _evict(self) -> int:
        block, idle_since = self._cached.popitem(last=False)
        key = self._keys[block]
        assert key is not None
        self._drop_from_index(key)
        self._keys[block] = None
        self.history.evicted(key, lifetime=self.now - self._born[block], idle=self.now - idle_since)
        return block

    def _retire(self, blocks: Iterable[int]) -> None:
        """Blocks without references become CACHED where they can be found, else FREE."""
        keys, groups, index = self._keys, self._groups, self._index
        for block in blocks:
            key = keys[block]
            if key is None:
                self.num_open[groups[block]] -= 1
                self._free.append(block)
                continue
            self.num_sealed[groups[block]] -= 1
            if index.get(key) == block:
                self._cached[block] = self.now
            else:
                keys[block] = None
                self._free.append(block)

    def _name(self, block: int, key: bytes) -> None:
        self._keys[block] = key
        self._born[block] = self.now

    def _add_to_index(self, key: bytes, block: int) -> None:
        self._index[key] = block
        self._indexed[key] = block
        self._unindexed.pop(key, None)

    def _drop_from_index(self, key: bytes) -> None:
        del self._index[key]
        self._indexed.pop(key, None)
        self._unindexed[key] = None
        self.history.gone(key)
