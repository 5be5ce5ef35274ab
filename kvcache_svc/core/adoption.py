"""Taking leases over from their scheduler, where this process has never seen the pool: are they possible together?"""

from collections import Counter
from collections.abc import Sequence

from augury.errors import InvalidRequestError
from augury.geometry import NULL_BLOCK, KvGroup
from augury.types import Holding, PoolSpec


def sealed_blocks(spec: PoolSpec, holdings: Sequence[Holding]) -> dict[int, bytes]:
    """The blocks that the holdings call sealed, with their keys; every other one of theirs has one writer.

    Raises InvalidRequestError for holdings that contradict ``spec``, themselves or one another.
    """
    if len({holding.lease for holding in holdings}) < len(holdings):
        raise InvalidRequestError("a lease is held twice")
    for holding in holdings:
        _check_tables(spec, holding)
    keys: dict[int, bytes] = {}
    for holding in holdings:
        for block, key in _seals(holding):
            if keys.setdefault(block, key) != key:
                raise InvalidRequestError(f"block {block} is sealed under two keys")
    _check_writers(holdings, keys)
    return keys


def _check_tables(spec: PoolSpec, holding: Holding) -> None:
    if len(holding.blocks) != len(spec.groups):
        raise InvalidRequestError(f"lease {holding.lease} has {len(holding.blocks)} block tables")
    for group, table in zip(spec.groups, holding.blocks, strict=True):
        if any(not NULL_BLOCK <= block < spec.num_blocks for block in table):
            raise InvalidRequestError(f"lease {holding.lease} holds a block that the pool has not")
        if NULL_BLOCK in table[_num_passed(group, table) :]:
            raise InvalidRequestError(f"lease {holding.lease} lacks a block that no window has passed")


def _num_passed(group: KvGroup, table: Sequence[int]) -> int:
    """Leading null blocks, as only a window group has them."""
    if group.window is None:
        return 0
    return next((index for index, block in enumerate(table) if block != NULL_BLOCK), len(table))


def _seals(holding: Holding) -> list[tuple[int, bytes]]:
    places = {(seal.group, seal.index) for seal in holding.seals}
    if len(places) < len(holding.seals):
        raise InvalidRequestError(f"lease {holding.lease} seals a block twice")
    for seal in holding.seals:
        if seal.lease != holding.lease or not 0 <= seal.group < len(holding.blocks):
            raise InvalidRequestError(f"lease {holding.lease} does not hold what it seals")
        table = holding.blocks[seal.group]
        if not 0 <= seal.index < len(table) or table[seal.index] == NULL_BLOCK:
            raise InvalidRequestError(f"lease {holding.lease} seals index {seal.index}, where it holds no block")
    return [(holding.blocks[seal.group][seal.index], seal.key) for seal in holding.seals]


def _check_writers(holdings: Sequence[Holding], keys: dict[int, bytes]) -> None:
    held = Counter(block for holding in holdings for table in holding.blocks for block in table)
    for block, count in held.items():
        if count > 1 and block not in keys and block != NULL_BLOCK:
            raise InvalidRequestError(f"block {block} has {count} writers")
