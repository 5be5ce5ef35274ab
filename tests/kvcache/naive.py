"""The block pool as its definition reads: no counts kept, everything derived from tables, keys and one list."""

from collections import Counter
from collections.abc import Sequence

from kvcache_svc.core.pool import Census


class NaivePool:
    """``tables`` hold block lists by lease; ``keys`` the sealed blocks' keys; ``cached`` the order of eviction."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.tables: dict[int, list[int]] = {}
        self.keys: dict[int, bytes] = {}
        self.index: dict[bytes, int] = {}
        self.cached: list[int] = []

    @property
    def refs(self) -> Counter[int]:
        return Counter(block for table in self.tables.values() for block in table)

    @property
    def free(self) -> set[int]:
        return set(range(1, self.num_blocks)) - set(self.refs) - set(self.cached)

    @property
    def open(self) -> set[int]:
        return {block for block in self.refs if block not in self.keys}

    @property
    def num_available(self) -> int:
        return len(self.free) + len(self.cached)

    def census(self) -> Census:
        held = set(self.refs)
        sealed = held - self.open
        return Census(free=len(self.free), open=len(self.open), sealed=len(sealed), cached=len(self.cached))

    def hit(self, keys: Sequence[bytes]) -> list[int]:
        blocks: list[int] = []
        for key in keys:
            if key not in self.index:
                break
            blocks.append(self.index[key])
        return blocks

    def hold(self, lease: int, hit: Sequence[int], new: Sequence[int]) -> None:
        """``lease`` holds ``hit`` and then ``new`` blocks too. AssertionError where ``new`` is not free to take."""
        table = self.tables.setdefault(lease, [])
        table.extend(hit)
        self.cached = [block for block in self.cached if block not in hit]
        num_evicted = max(len(new) - len(self.free), 0)
        evicted, self.cached = self.cached[:num_evicted], self.cached[num_evicted:]
        for block in evicted:
            del self.index[self.keys.pop(block)]
        assert len(set(new)) == len(new)
        assert set(new) <= self.free
        assert set(evicted) <= set(new)
        table.extend(new)

    def seal(self, block: int, key: bytes) -> None:
        self.keys[block] = key
        self.index.setdefault(key, block)

    def release(self, lease: int) -> None:
        for block in reversed(self.tables[lease]):
            self.tables[lease].pop()
            if block not in self.refs:
                self._unreferenced(block)
        del self.tables[lease]

    def forget(self, key: bytes) -> None:
        block = self.index.pop(key, None)
        if block in self.cached:
            self.cached.remove(block)
            del self.keys[block]

    def _unreferenced(self, block: int) -> None:
        key = self.keys.get(block)
        if key is not None and self.index.get(key) == block:
            self.cached.append(block)
        else:
            self.keys.pop(block, None)
