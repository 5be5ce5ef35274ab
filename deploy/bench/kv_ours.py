"""The KV core and the registry in memory under the work of `augury bench kv`, driven as the scheduler drives them."""

from collections.abc import Sequence
from dataclasses import dataclass

from augury.geometry import KvGroup
from augury.keys import KeyDomain, group_key, root_key
from augury.types import Granted, PoolSpec, Proposal, Reserve, Seal
from deploy.bench.kv_work import BLOCK_SIZE, Clock, main
from kvcache_svc.core.coordinator import Coordinator
from kvcache_svc.core.hits import Prefixes
from kvcache_svc.registry import MemoryRegistry

_DOMAIN = KeyDomain(block_size=BLOCK_SIZE)
_ROOT = root_key("f", b"")


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``keys[group]`` name all blocks that the request will ever fill; ``lengths[group]`` is that of its table."""

    lease: int
    keys: tuple[tuple[bytes, ...], ...]
    num_known: int
    num_sealed: list[int]
    lengths: list[int]

    @property
    def lookup(self) -> tuple[tuple[bytes, ...], ...]:
        """At least one token remains to be computed."""
        return tuple(keys[: (self.num_known - 1) // BLOCK_SIZE] for keys in self.keys)

    def owed(self, num_computed: int) -> list[Seal]:
        seals = []
        for group, keys in enumerate(self.keys):
            start, self.num_sealed[group] = self.num_sealed[group], num_computed // BLOCK_SIZE
            places = range(start, self.num_sealed[group])
            seals += [Seal(lease=self.lease, group=group, index=index, key=keys[index]) for index in places]
        return seals


class Ours:
    """The part of a scheduler lane that talks to its pool; see ``kv_work.Cache``."""

    def __init__(self, windows: Sequence[int | None], num_blocks: int, clock: Clock) -> None:
        self._groups = tuple(KvGroup(block_size=BLOCK_SIZE, window=window) for window in windows)
        spec = PoolSpec(
            pool="w", incarnation="i", fingerprint="f", epoch=1, num_blocks=num_blocks + 1, groups=self._groups
        )
        self._clock = clock
        self._kv = Coordinator(spec)
        self._prefixes = Prefixes(self._groups, self._kv.pool.find, self._kv.pool.history.was_evicted)
        self._registry = MemoryRegistry()
        self._num_steps = 0
        self._num_leases = 0

    def named(self, tokens: Sequence[int], num_known: int) -> Request:
        self._num_leases += 1
        num_groups = len(self._groups)
        return Request(
            lease=self._num_leases,
            keys=self._clock(lambda: _keys(tokens, num_groups)),
            num_known=num_known,
            num_sealed=[0] * num_groups,
            lengths=[0] * num_groups,
        )

    def look_up(self, request: Request) -> int:
        keys = request.lookup
        return self._clock(lambda: self._prefixes.hit(keys)).num_tokens

    def admit(self, request: Request) -> None:
        self._step(begun=[request])

    def seal(self, request: Request) -> None:
        self._step(seals=request.owed(request.num_known))

    def release(self, request: Request) -> None:
        self._step(releases=[request.lease])

    def lose_windows(self, request: Request) -> None:
        for group, keys in zip(self._groups, request.keys, strict=True):
            if group.window is not None:
                for key in keys:
                    self._kv.pool.forget(key)

    def iterate(self, running: Sequence[Request], ended: Sequence[Request], begun: Sequence[Request]) -> None:
        seals = []
        for request in (*running, *ended):
            # The last known token is computed by the next step.
            seals += request.owed(request.num_known)
            request.num_known += 1
        self._step(seals, [request.lease for request in ended], [r for r in running if self._is_short(r)], begun)

    def _is_short(self, request: Request) -> bool:
        return request.num_known > min(request.lengths) * BLOCK_SIZE

    def _step(
        self,
        seals: Sequence[Seal] = (),
        releases: Sequence[int] = (),
        growing: Sequence[Request] = (),
        begun: Sequence[Request] = (),
    ) -> None:
        """One proposal through the pool, and the registry told of it, as the service does."""
        self._num_steps += 1
        proposal = Proposal(
            pool="w",
            epoch=1,
            seq=self._num_steps,
            seals=tuple(seals),
            releases=tuple(releases),
            reserves=(*map(_growth, growing), *map(_admission, begun)),
        )
        for request, granted in zip((*growing, *begun), self._clock(lambda: self._carry_out(proposal)), strict=True):
            assert granted is not None, "the pool is too small for the load"
            for group, blocks in enumerate(granted.blocks):
                request.lengths[group] += len(blocks)
            request.num_sealed = list(granted.num_sealed) or request.num_sealed

    def _carry_out(self, proposal: Proposal) -> tuple[Granted | None, ...]:
        grant = self._kv.step(proposal)
        self._registry.record(self._kv.spec, *self._kv.pool.take_index_changes())
        return grant.reserves


def _keys(tokens: Sequence[int], num_groups: int) -> tuple[tuple[bytes, ...], ...]:
    chain: list[bytes] = []
    _DOMAIN.extend(chain, _ROOT, tokens)
    return tuple(tuple([group_key(key, group) for key in chain]) for group in range(num_groups))


def _growth(request: Request) -> Reserve:
    return Reserve(lease=request.lease, num_slots=request.num_known, num_ahead=1, num_computed=request.num_known - 1)


def _admission(request: Request) -> Reserve:
    return Reserve(lease=request.lease, num_slots=request.num_known, num_ahead=request.num_known, keys=request.lookup)


if __name__ == "__main__":
    main("augury", Ours)
