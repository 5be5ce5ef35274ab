"""What the kinds of KV group differ in beyond their geometry: which cached blocks serve as a prefix hit."""

from collections.abc import Callable, Sequence
from typing import Protocol

from augury.geometry import NULL_BLOCK, KvGroup

Find = Callable[[bytes], int | None]


class Search(Protocol):
    """One request's search among the cached blocks of one group.

    A group of recurrent state is a third kind. Its blocks are checkpoints of the state, so a hit of h tokens needs the
    one that ends at h and nothing before: ``longest`` steps left over boundaries to the first one found, ``blocks`` is
    that checkpoint behind nulls. Its KvGroup must say, as the others do, how long a table is (a running state, one
    more for each draft that may be rejected, and the checkpoints kept), which entries are skipped (checkpoints left of
    the last one) and the peak of both. The coordinator needs no more.
    """

    group: KvGroup
    num_named: int
    """Tokens that the request's keys name."""
    missing: bytes | None
    """The key whose absence ended the search last."""

    def longest(self, limit: int) -> int:
        """The most tokens, at most ``limit`` and a multiple of the scheduler block, that the group can take over."""

    def blocks(self, num_tokens: int) -> list[int]:
        """The block table of a hit of so many tokens, as ``longest`` told them; null where no window reaches."""


class FullAttention:
    """Every position attends to all before it: a hit is a run of found keys from the left."""

    def __init__(self, group: KvGroup, stride: int, keys: Sequence[bytes], find: Find) -> None:
        self.group = group
        self.num_named = len(keys) * group.block_size
        self._stride = stride
        self._found: list[int] = []
        self.missing: bytes | None = None
        for key in keys:
            block = find(key)
            if block is None:
                self.missing = key
                break
            self._found.append(block)

    def longest(self, limit: int) -> int:
        limit = min(limit, len(self._found) * self.group.block_size)
        return limit - limit % self._stride

    def blocks(self, num_tokens: int) -> list[int]:
        return self._found[: num_tokens // self.group.block_size]


class SlidingWindow:
    """A hit is a run of found keys as long as the window and its retained tail reach back, or down to position 0.

    Searched from the right: (w - 1 + E) / block_size blocks, rounded up, before the boundary (mtp_semantics §3.3).
    """

    def __init__(self, group: KvGroup, stride: int, keys: Sequence[bytes], find: Find) -> None:
        self.group = group
        self.num_named = len(keys) * group.block_size
        self.missing: bytes | None = None
        self._stride = stride
        self._keys = keys
        self._find = find
        self._run = range(0)

    def longest(self, limit: int) -> int:
        size = self.group.block_size
        tokens = min(limit, self.num_named)
        tokens -= tokens % self._stride
        while tokens and (gap := self._gap(tokens // size)) is not None:
            tokens = gap * size - gap * size % self._stride
        return tokens

    def blocks(self, num_tokens: int) -> list[int]:
        size = self.group.block_size
        num_null = self.group.num_skipped(num_tokens)
        wanted = self._keys[num_null : num_tokens // size]
        return [NULL_BLOCK] * num_null + [block for block in map(self._find, wanted) if block is not None]

    def _gap(self, end: int) -> int | None:
        """The last index missing among those that a hit of ``end`` blocks needs; ``_run`` is what is known found."""
        keys, find = self._keys, self._find
        first = self.group.num_skipped(end * self.group.block_size)
        known = self._run.start if end - 1 in self._run else end
        for index in range(known - 1, first - 1, -1):
            if find(keys[index]) is None:
                self.missing, self._run = keys[index], range(index + 1, end)
                return index
        self._run = range(min(first, known), end)
        return None


def search(group: KvGroup, stride: int, keys: Sequence[bytes], find: Find) -> Search:
    """The search of a group's kind. ``keys[i]`` names its block i, ``stride`` is the scheduler block in tokens."""
    kind = FullAttention if group.window is None else SlidingWindow
    return kind(group, stride, keys, find)
