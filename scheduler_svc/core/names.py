"""What the blocks of one worker's requests are found under: equal names mean equal KV, draft layers included (rule E).

Keys are chained at the hash block, in at most two chains: a plain one, and one that covers the lookahead too, for
groups that hold draft layers. A block is named by the last key inside it, or by that of a later block, as many places
on as it takes to prove the lookahead (``kv.key_lookahead = off``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from augury.geometry import hash_block
from augury.keys import KeyDomain, block_key, group_key, root_key
from augury.types import Holding, Seal
from scheduler_svc.core.encoder import extra_of
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.request import Request

Keys = tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupNames:
    """A group's blocks have ``stride`` keys each in its ``chain``, and are named ``margin`` blocks late."""

    group: int
    block_size: int
    chain: int
    stride: int
    margin: int


class Names:
    """Names of a lane's blocks. Lanes of one ``domain`` give equal names."""

    def __init__(self, config: LaneConfig) -> None:
        size = hash_block(config.groups)
        reaches = sorted(set(map(config.key_reach, config.groups)))
        self._fingerprint = config.fingerprint
        self._lookahead = max(config.num_prefill_lookahead, 1)
        self._enabled = config.prefix_caching
        self._domains = [KeyDomain(block_size=size, lookahead=reach) for reach in reaches]
        self._groups = [
            _GroupNames(
                group=index,
                block_size=group.block_size,
                chain=reaches.index(config.key_reach(group)),
                stride=group.block_size // size,
                margin=config.key_margin(group),
            )
            for index, group in enumerate(config.groups)
        ]
        self._leading = next((i for i, group in enumerate(config.groups) if group.window is None), 0)
        self.domain = repr((self._fingerprint, self._lookahead, self._enabled, self._domains, self._groups))

    def of(self, request: Request, group: int, blocks: Sequence[int]) -> list[bytes]:
        """Names of ``blocks`` of the request's table of ``group``, all below ``num_known``."""
        names = self._groups[group]
        chain = self._chain(request, names.chain)
        return [group_key(chain[(block + 1 + names.margin) * names.stride - 1], group) for block in blocks]

    def num_known(self, request: Request, group: int) -> int:
        """Blocks of ``group`` whose name follows from the known tokens; none without prefix caching."""
        names = self._groups[group]
        num_keys = max(len(request.tokens) - self._domains[names.chain].lookahead, 0) // self._domains[0].block_size
        return max(num_keys // names.stride - names.margin, 0) if self._enabled else 0

    def lookup(self, request: Request) -> tuple[Keys, ...]:
        """For each group the names of blocks that a hit may cover; nothing where there are none."""
        numbers = [self._num_hits(request, names) for names in self._groups]
        if not any(numbers):
            return ()
        return tuple(tuple(self.of(request, group, range(number))) for group, number in enumerate(numbers))

    def prefix(self, request: Request) -> tuple[int, list[bytes]]:
        """A block size, and the names of the request's blocks in the group that tells best how much is cached."""
        names = self._groups[self._leading]
        return names.block_size, self.of(request, self._leading, range(self._num_hits(request, names)))

    def longest_hit(self, request: Request) -> int:
        """Tokens that a hit may cover at most."""
        return min(self._num_hits(request, names) * names.block_size for names in self._groups)

    def hits(self, request: Request) -> list[tuple[int, bytes]]:
        """The hit blocks of the request's lease, and the keys they must carry."""
        hits: list[tuple[int, bytes]] = []
        for group, table in enumerate(request.tables):
            keys = self.of(request, group, table.hits)
            hits.extend((table.blocks[index], key) for index, key in zip(table.hits, keys, strict=True))
        return hits

    def holding(self, request: Request) -> Holding:
        """The request's lease as the pool must know it."""
        seals: list[Seal] = []
        for group, table in enumerate(request.tables):
            keys = self.of(request, group, table.sealed)
            pairs = zip(table.sealed, keys, strict=True)
            seals.extend(Seal(lease=request.handle, group=group, index=index, key=key) for index, key in pairs)
        tables = tuple(table.live for table in request.tables)
        return Holding(lease=request.handle, blocks=tables, seals=tuple(seals))

    def start(self, request: Request) -> bytes | None:
        """What the first hash block of the request holds, whatever its salt; None where it is not full."""
        size = self._domains[0].block_size
        if len(request.tokens) < size:
            return None
        return block_key(
            root_key(self._fingerprint, b""), request.tokens[:size], extra_of(request.generation.inputs, 0, size)
        )

    def _num_hits(self, request: Request, names: _GroupNames) -> int:
        """At least the lookahead remains to be computed, so that the worker has rows to make the drafts from."""
        whole = (len(request.tokens) - self._lookahead) // names.block_size
        return min(self.num_known(request, names.group), max(whole, 0))

    def _chain(self, request: Request, index: int) -> list[bytes]:
        if request.keys_of != self.domain:
            request.keys, request.keys_of = [[] for _ in self._domains], self.domain
        keys = request.keys[index]
        root = keys[0] if keys else root_key(self._fingerprint, request.generation.cache_salt)  # of the first key only
        inputs = request.generation.inputs
        self._domains[index].extend(keys, root, request.tokens, partial(extra_of, inputs) if inputs else None)
        return keys
