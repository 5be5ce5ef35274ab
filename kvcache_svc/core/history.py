"""What became of cached content, for people who ask why a prompt missed: evictions, ages, the hottest prefixes."""

from bisect import bisect_left
from collections import Counter
from heapq import nlargest

from augury.types import Miss
from kvcache_svc.core.hits import Hit
from kvcache_svc.core.inspection import Histogram, HotPrefix, LookupCounts

BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""Upper bounds of the histograms' buckets; one more bucket takes what is older."""

MAX_GHOSTS = 65_536
"""Evicted keys remembered at most, and half as many at least. A key takes about 130 bytes."""


class Ages:
    """A histogram that grows."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total += seconds

    def histogram(self) -> Histogram:
        return Histogram(bounds=BOUNDS_S, counts=tuple(self._counts), total=self._total)


class History:
    """Every event costs O(1), and no more is kept than the index has keys and ``MAX_GHOSTS``."""

    def __init__(self) -> None:
        self.lifetimes = Ages()
        self.idle_times = Ages()
        self._ghosts: set[bytes] = set()
        self._older_ghosts: set[bytes] = set()
        self._hits: dict[bytes, tuple[int, int]] = {}
        self._num_lookups = 0
        self._query_tokens = 0
        self._hit_tokens = 0
        self._misses: Counter[Miss] = Counter()

    def evicted(self, key: bytes, lifetime: float, idle: float) -> None:
        """Content found under ``key`` for ``lifetime`` seconds, the last ``idle`` of them unused, made room."""
        self.lifetimes.add(lifetime)
        self.idle_times.add(idle)
        if len(self._ghosts) >= MAX_GHOSTS // 2:
            self._ghosts, self._older_ghosts = set(), self._ghosts
        self._ghosts.add(key)

    def was_evicted(self, key: bytes) -> bool:
        """Whether ``key`` was evicted lately."""
        return key in self._ghosts or key in self._older_ghosts

    def gone(self, key: bytes) -> None:
        """``key`` is no longer found."""
        self._hits.pop(key, None)

    def looked_up(self, hit: Hit) -> None:
        self._num_lookups += 1
        self._query_tokens += hit.num_named
        self._hit_tokens += hit.num_tokens
        if hit.miss is not None:
            self._misses[hit.miss] += 1
        if hit.key is not None:
            num_hits, _ = self._hits.get(hit.key, (0, 0))
            self._hits[hit.key] = num_hits + 1, hit.num_tokens

    def lookups(self) -> LookupCounts:
        return LookupCounts(
            num_lookups=self._num_lookups,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            misses=dict(self._misses),
        )

    def hottest(self, num: int) -> tuple[HotPrefix, ...]:
        """Prefixes that are still found, by the number of lookups that ended there, longer ones first among equals."""
        most = nlargest(num, self._hits.items(), key=lambda item: item[1])
        return tuple(HotPrefix(key=key, num_tokens=tokens, num_hits=hits) for key, (hits, tokens) in most)
