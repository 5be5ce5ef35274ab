"""The KV core as its definitions read: no counts kept, everything derived from tables, keys and one list."""

from collections import Counter
from collections.abc import Mapping, Sequence

from augury.geometry import KvGroup, scheduler_block
from augury.types import Holding, Miss, Seal
from kvcache_svc.core.inspection import Census, GroupUsage

Keys = Sequence[Sequence[bytes]]


class NaivePool:
    """``tables`` hold the block lists of each group by lease; ``keys`` the sealed blocks' keys; ``cached`` the order of
    eviction; ``evicted`` every key that ever was, ``ends`` how often a lookup ended at a key that is still found.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self.num_groups = num_groups
        self.tables: dict[int, list[list[int]]] = {}
        self.keys: dict[int, bytes] = {}
        self.index: dict[bytes, int] = {}
        self.cached: list[int] = []
        self.evicted: set[bytes] = set()
        self.ends: Counter[bytes] = Counter()

    @property
    def refs(self) -> Counter[int]:
        return Counter(block for lease in self.tables.values() for table in lease for block in table if block)

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
        sealed = set(self.refs) - self.open
        return Census(free=len(self.free), open=len(self.open), sealed=len(sealed), cached=len(self.cached))

    def usage(self, group: int) -> GroupUsage:
        held = [block for lease in self.tables.values() for block in lease[group] if block]
        num_open = len(set(held) & self.open)
        return GroupUsage(open=num_open, sealed=len(set(held)) - num_open, held=len(held))

    def run(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks found from the left."""
        blocks: list[int] = []
        for key in keys:
            if key not in self.index:
                break
            blocks.append(self.index[key])
        return blocks

    def hold(self, lease: int, hits: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> None:
        """``lease`` holds ``hits`` and then ``new`` blocks too. AssertionError where ``new`` are not free to take."""
        tables = self.tables.setdefault(lease, [[] for _ in range(self.num_groups)])
        for table, hit in zip(tables, hits, strict=True):
            table.extend(hit)
            self.cached = [block for block in self.cached if block not in hit]
        taken = [block for blocks in new for block in blocks]
        num_evicted = max(len(taken) - len(self.free), 0)
        evicted, self.cached = self.cached[:num_evicted], self.cached[num_evicted:]
        for block in evicted:
            self.evicted.add(self.keys[block])
            self._unfind(self.keys.pop(block))
        assert len(set(taken)) == len(taken)
        assert set(taken) <= self.free
        assert set(evicted) <= set(taken)
        for table, blocks in zip(tables, new, strict=True):
            table.extend(blocks)

    def seal(self, block: int, key: bytes) -> None:
        self.keys[block] = key
        self.index.setdefault(key, block)

    def drop(self, lease: int, group: int, index: int) -> None:
        """The null block takes this place of the table."""
        block, self.tables[lease][group][index] = self.tables[lease][group][index], 0
        if block and block not in self.refs:
            self._unreferenced(block)

    def release(self, lease: int, groups: Sequence[KvGroup] = (KvGroup(block_size=1),)) -> None:
        """The rightmost scheduler block first, and of it the last group."""
        places = [
            (index * groups[group].block_size // scheduler_block(groups), group, index)
            for group, table in enumerate(self.tables[lease])
            for index in range(len(table))
        ]
        for _, group, index in sorted(places, reverse=True):
            self.drop(lease, group, index)
        del self.tables[lease]

    def forget(self, key: bytes) -> None:
        block = self.index.get(key)
        if block is None:
            return
        self._unfind(key)
        if block in self.cached:
            self.cached.remove(block)
            del self.keys[block]

    def restore(self, content: Mapping[bytes, int]) -> None:
        for block, key in {block: key for key, block in content.items() if 0 < block < self.num_blocks}.items():
            if block not in self.refs and key not in self.index:
                self.seal(block, key)
                self.cached.append(block)

    def adopt(self, holdings: Sequence[Holding]) -> None:
        """Nothing is known but these."""
        self.tables = {holding.lease: [list(table) for table in holding.blocks] for holding in holdings}
        sealed = {h.blocks[seal.group][seal.index]: seal.key for h in holdings for seal in h.seals}
        self.keys, self.index, self.cached = {}, {}, []
        self.evicted, self.ends = set(), Counter()
        for block in (block for lease in self.tables.values() for table in lease for block in table):
            if block in sealed:
                self.seal(block, sealed[block])

    def holdings(self) -> list[Holding]:
        """All leases, as a scheduler tells of them that knows each block's key."""
        return [
            Holding(
                lease=lease,
                blocks=tuple(map(tuple, tables)),
                seals=tuple(
                    Seal(lease=lease, group=group, index=index, key=self.keys[block])
                    for group, table in enumerate(tables)
                    for index, block in enumerate(table)
                    if block in self.keys
                ),
            )
            for lease, tables in self.tables.items()
        ]

    def _unfind(self, key: bytes) -> None:
        del self.index[key]
        self.ends.pop(key, None)

    def _unreferenced(self, block: int) -> None:
        key = self.keys.get(block)
        if key is not None and self.index.get(key) == block:
            self.cached.append(block)
        else:
            self.keys.pop(block, None)


class NaiveHits:
    """The common hit by trying every boundary, from the rightmost."""

    def __init__(self, groups: Sequence[KvGroup], pool: NaivePool, keys: Keys) -> None:
        self.groups = groups
        self.pool = pool
        self.keys = keys
        self.all = range(len(groups))
        lasting = [g for g in self.all if groups[g].num_rebuilt is None] or list(self.all)
        most = self.common(lasting)
        self.short = [g for g in self.all if not self.serves(g, most)]
        self.num_tokens = self.common(self.all)
        tail = max([groups[g].num_rebuilt or 0 for g in self.short], default=0)
        start = self.common([g for g in self.all if g not in self.short], most - tail)
        if start > self.num_tokens:
            self.num_tokens = start
        else:
            self.short = []

    def serves(self, group: int, num_tokens: int) -> bool:
        """Whether every block is there with a position that the first query after the hit, or one repaired, sees."""
        size = self.groups[group].block_size
        keys = self.keys[group]
        needed = [i for i in range(num_tokens // size) if not is_dead(self.groups[group], i, num_tokens)]
        return num_tokens <= len(keys) * size and all(keys[i] in self.pool.index for i in needed)

    def common(self, groups: Sequence[int], limit: int | None = None) -> int:
        step = scheduler_block(self.groups)
        longest = max(len(keys) * group.block_size for keys, group in zip(self.keys, self.groups, strict=True))
        boundaries = range(0, (longest if limit is None else max(limit, 0)) + 1, step)
        return max(h for h in boundaries if all(self.serves(group, h) for group in groups))

    def tables(self) -> list[list[int]]:
        tables = []
        for g, group in enumerate(self.groups):
            indices = range(self.num_tokens // group.block_size)
            dead = [g in self.short or is_dead(group, i, self.num_tokens) for i in indices]
            tables.append([0 if dead[i] else self.pool.index[self.keys[g][i]] for i in indices])
        return tables

    def num_sealed(self) -> tuple[int, ...]:
        return tuple(
            ceil_div(self.num_tokens + ((group.num_rebuilt or 0) if g in self.short else 0), group.block_size)
            for g, group in enumerate(self.groups)
        )

    def num_named(self) -> int:
        """Whole blocks of some group in as many tokens as each group may know of, judging by its number of keys."""
        sizes = [group.block_size for group in self.groups]
        tokens = min((len(keys) + 1) * size - 1 for keys, size in zip(self.keys, sizes, strict=True))
        return max(tokens // size * size for size in sizes)

    def allows(self, miss: Miss | None) -> bool:
        """Whether ``miss`` is a reason why the hit is no longer."""
        full = [g for g in self.all if self.groups[g].window is None]
        gone = [key for g in full or self.all for key in self.keys[g] if key not in self.pool.index]
        first = [[key for key in self.keys[g] if key not in self.pool.index][:1] for g in full]
        missing = [key for keys in first for key in keys] if full else gone
        further = bool(full) and self.common(full, self.num_named()) > self.num_tokens
        if miss is not None and self.num_tokens >= self.num_named():
            return False
        match miss:
            case Miss.WINDOW:
                return further
            case Miss.EVICTED:
                return not further and any(key in self.pool.evicted for key in missing)
            case Miss.COLD:
                return not further and any(key not in self.pool.evicted for key in missing)
            case Miss.ALIGNMENT:
                return not further and not (full and missing)
            case _:
                return self.num_tokens >= self.num_named()


def is_dead(group: KvGroup, index: int, num_computed: int) -> bool:
    """Whether no query from row ``num_computed - num_retained`` on sees a position of the block."""
    if group.window is None:
        return False
    last = (index + 1) * group.block_size - 1
    return last <= num_computed - group.num_retained - group.window


def ceil_div(n: int, size: int) -> int:
    return -(-n // size)
