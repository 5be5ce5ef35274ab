"""The KV service around the real coordinator: pools, crashes, and a registry that lags and errs."""

from collections import Counter
from random import Random

from augury.errors import FencedError, UnknownPoolError
from augury.types import Grant, PoolSpec, Proposal
from kvcache_svc.core.coordinator import Coordinator, open_pool
from tests.sim.clock import Clock
from tests.sim.messages import Answer, Opened, Refusal, stamp
from tests.sim.plan import Registry

Memory = tuple[str, str]
"""(pool, incarnation): what a registry entry belongs to."""


class RegistryTwin:
    """What is known of each worker's blocks outside the service process; writes arrive late or, in a crash, never."""

    def __init__(self, clock: Clock, rng: Random, settings: Registry) -> None:
        self.settings = settings
        self._clock = clock
        self._rng = rng
        self._entries: dict[Memory, dict[bytes, int]] = {}
        self._seen: dict[bytes, int] = {}
        self._life = 0

    def record(self, coordinator: Coordinator) -> None:
        """Write behind what the pool's index gained and lost."""
        gained, lost = coordinator.pool.take_index_changes()
        if not (gained or lost):
            return
        memory, life = _memory(coordinator.spec), self._life
        self._seen.update(dict(gained))

        def write() -> None:
            if life == self._life:
                entries = self._entries.setdefault(memory, {})
                entries.update(gained)
                for key in lost:
                    entries.pop(key, None)

        self._clock.after(self.settings.lag, write)

    def load(self, spec: PoolSpec) -> dict[bytes, int]:
        """What is remembered of the memory, and entries that are wrong, out of range ones among them."""
        entries = dict(self._entries.get(_memory(spec), {}))
        for key in self._rng.sample(list(self._seen), int(self.settings.planted * len(self._seen))):
            entries[key] = self._rng.randint(0, spec.num_blocks)
        return entries

    def service_crashed(self) -> None:
        """Writes under way are lost, and sometimes everything."""
        self._life += 1
        if self._rng.random() >= self.settings.remembers:
            self._entries.clear()


class KvServer:
    """The KV service's process. While it is down it hears nothing."""

    def __init__(self, registry: RegistryTwin, tally: Counter[str]) -> None:
        self.pools: dict[str, Coordinator] = {}
        self.up = True
        self._registry = registry
        self._tally = tally

    def receive(self, message: PoolSpec | Proposal) -> Answer | None:
        """The answer; None while the service is down."""
        if not self.up:
            return None
        try:
            return self._open(message) if isinstance(message, PoolSpec) else self._step(message)
        except (FencedError, UnknownPoolError) as error:
            self._tally["kv refusal"] += 1
            return Refusal(stamp=stamp(message), error=str(error))

    def crash(self) -> None:
        self.up = False
        self.pools.clear()
        self._registry.service_crashed()

    def restart(self) -> None:
        self.up = True

    def _open(self, spec: PoolSpec) -> Opened:
        known = self.pools.get(spec.pool)
        pool = self.pools[spec.pool] = open_pool(known, spec, {} if known else self._registry.load(spec))
        pool.check()
        self._registry.record(pool)
        return Opened(epoch=spec.epoch, num_available=pool.pool.num_available)

    def _step(self, proposal: Proposal) -> Grant:
        pool = self.pools.get(proposal.pool)
        if pool is None:
            raise UnknownPoolError(f"pool {proposal.pool} is not open")
        grant = pool.step(proposal)
        pool.check()
        self._registry.record(pool)
        return grant


def _memory(spec: PoolSpec) -> Memory:
    return spec.pool, spec.incarnation
