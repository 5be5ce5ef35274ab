"""The prefix hit common to all groups, and why it is no longer."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from augury.geometry import NULL_BLOCK, KvGroup, scheduler_block
from augury.types import Miss
from kvcache_svc.core.groups import Find, FullAttention, Search, search


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """``num_tokens`` of ``num_named`` tokens are there, in the block ``tables`` of the groups.

    ``num_named`` is the longest hit of any group were all named blocks there; ``num_sealed[group]`` leading entries are
    never to be sealed by the lease; ``key`` names a group's last block of the hit.
    """

    num_tokens: int
    num_named: int
    tables: list[list[int]]
    num_sealed: tuple[int, ...]
    key: bytes | None
    miss: Miss | None


class Prefixes:
    """Looks prompts up in a pool's index (``find``); ``was_evicted`` knows the keys that were there lately."""

    def __init__(self, groups: Sequence[KvGroup], find: Find, was_evicted: Callable[[bytes], bool]) -> None:
        self._groups = groups
        self._stride = scheduler_block(groups)
        self._find = find
        self._was_evicted = was_evicted

    def hit(self, keys: Sequence[Sequence[bytes]]) -> Hit:
        """The longest hit where ``keys[group]`` name the group's blocks in order."""
        searches = [
            search(group, self._stride, names, self._find) for group, names in zip(self._groups, keys, strict=True)
        ]
        num_tokens, rebuilt = _extent(searches)
        num_named = _num_named(searches)
        return Hit(
            num_tokens=num_tokens,
            num_named=num_named,
            tables=[_table(each, num_tokens, each in rebuilt) for each in searches],
            num_sealed=tuple([_num_sealed(each.group, num_tokens, each in rebuilt) for each in searches]),
            key=_last_key(searches, keys, num_tokens, rebuilt),
            miss=self._miss(searches, num_tokens) if num_tokens < num_named else None,
        )

    def _miss(self, searches: Sequence[Search], num_tokens: int) -> Miss:
        """Why a hit of ``num_tokens`` is not longer, though keys name more."""
        full = [each for each in searches if isinstance(each, FullAttention)]
        if full and _settle(full, _num_named(searches)) > num_tokens:
            return Miss.WINDOW
        missing = [each.missing for each in full or searches if each.missing is not None]
        if not missing:
            return Miss.ALIGNMENT
        return Miss.EVICTED if any(map(self._was_evicted, missing)) else Miss.COLD


def _extent(searches: Sequence[Search]) -> tuple[int, Collection[Search]]:
    """Tokens of the hit, and the searches that fall short of it, whose group is rebuilt from a recomputed tail.

    Where only groups that can be rebuilt fall short, the others' hit is taken, but for the tail, if that is longer.
    """
    limit = max(each.num_named for each in searches)
    lasting = [each for each in searches if each.group.num_rebuilt is None] or searches
    most = _settle(lasting, limit)
    short = [each for each in searches if each.longest(most) < most]
    if not short:
        return most, ()
    common = _settle(searches, most)
    tail = max(each.group.num_rebuilt or 0 for each in short)
    start = _settle([each for each in searches if each not in short], max(most - tail, 0))
    return (start, short) if start > common else (common, ())


def _settle(searches: Sequence[Search], limit: int) -> int:
    """The most tokens, at most ``limit``, that every group can take over: none shortens them any more."""
    before = None
    while limit != before:
        before = limit
        for each in searches:
            limit = each.longest(limit)
    return limit


def _num_named(searches: Sequence[Search]) -> int:
    """Tokens in whole blocks of some group, as far as the tokens go for which every group's keys vouch."""
    known = min(each.num_named + each.group.block_size for each in searches) - 1
    return max(known - known % each.group.block_size for each in searches)


def _table(search: Search, num_tokens: int, is_rebuilt: bool) -> list[int]:
    return [NULL_BLOCK] * (num_tokens // search.group.block_size) if is_rebuilt else search.blocks(num_tokens)


def _num_sealed(group: KvGroup, num_tokens: int, is_rebuilt: bool) -> int:
    return group.num_blocks(num_tokens + (group.num_rebuilt or 0) if is_rebuilt else num_tokens)


def _last_key(
    searches: Sequence[Search], keys: Sequence[Sequence[bytes]], num_tokens: int, rebuilt: Collection[Search]
) -> bytes | None:
    if num_tokens == 0:
        return None
    each, names = next((each, names) for each, names in zip(searches, keys, strict=True) if each not in rebuilt)
    return names[num_tokens // each.group.block_size - 1]
