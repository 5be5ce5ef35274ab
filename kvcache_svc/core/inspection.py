"""What a pool tells of itself."""

from collections.abc import Mapping
from dataclasses import dataclass

from augury.types import Miss


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """How many blocks are in each state; the null block is in none."""

    free: int
    open: int
    sealed: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """A group's blocks that leases hold: ``open`` and ``sealed`` ones, each counted once, and ``held`` by one lease and
    another, which is more where prefixes are shared.
    """

    open: int
    sealed: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCounts:
    """Lookups of admitted requests: ``hit_tokens`` of ``query_tokens`` found, ``misses[reason]`` ended short."""

    num_lookups: int
    query_tokens: int
    hit_tokens: int
    misses: Mapping[Miss, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """``counts[i]`` events of at most ``bounds[i]`` seconds and more than the bound before; the last count is the rest.

    ``total`` seconds in all.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPrefix:
    """A prefix of ``num_tokens`` tokens at whose last block, named ``key``, ``num_hits`` lookups ended."""

    key: bytes
    num_tokens: int
    num_hits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A pool at one moment. ``lifetime`` is from sealing to eviction, ``idle`` the last unused part of it."""

    census: Census
    groups: tuple[GroupUsage, ...]
    num_leases: int
    lookups: LookupCounts
    lifetime: Histogram
    idle: Histogram
    hottest: tuple[HotPrefix, ...]
