"""What the blocks of one worker hold, as far as its scheduler knows without asking: a hint for placement."""

from collections.abc import Iterable, Sequence


class Memory:
    """The keys that the worker's blocks carry: those it was told to tag, less those of blocks that were given to new
    writers since. At most one key for each block of the pool.

    It may be wrong either way (a refused hit, a lost pool): nothing but the choice of a lane depends on it.
    """

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}
        self._num_blocks: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Different keys."""
        return len(self._num_blocks)

    def learn(self, tags: Iterable[tuple[int, bytes]]) -> None:
        """Blocks carry these keys from now on."""
        for block, key in tags:
            if block in self._keys:
                self.overwrite((block,))
            self._keys[block] = key
            self._num_blocks[key] = self._num_blocks.get(key, 0) + 1

    def overwrite(self, blocks: Iterable[int]) -> None:
        """Blocks have a new writer."""
        for block in blocks:
            key = self._keys.pop(block, None)
            if key is None:
                continue
            self._num_blocks[key] -= 1
            if not self._num_blocks[key]:
                del self._num_blocks[key]

    def forget(self, keys: Iterable[bytes]) -> None:
        """The worker does not recognise these keys."""
        wrong = set(keys)
        self.overwrite([block for block, key in self._keys.items() if key in wrong])

    def num_known(self, keys: Sequence[bytes]) -> int:
        """How many of the leading ``keys``, which are chained, are there: found by bisection, since what is cached of
        a chain is nearly always a beginning of it (a pool evicts its end first).
        """
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in self._num_blocks:
                low = middle + 1
            else:
                high = middle
        return low
