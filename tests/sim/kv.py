"""The KV service around the real coordinator: pools, crashes, and a registry that lags and errs."""

from collections import Counter
from random import Random

from augury.errors import FencedError, UnknownPoolError
from augury.types import Grant, PoolSpec, Proposal
from kvcache_svc.core.coordinator import Coordinator, open_pool
from kvcache_svc.registry import reconcile
from tests.sim.checks import PeakCheck
from tests.sim.clock import Clock
from tests.sim.messages import Answer, Close, Open, Opened, Refusal, stamp
from tests.sim.plan import Registry
from tests.sim.survivors import Survivors

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

    @property
    def is_right(self) -> bool:
        """Whether no entry ever names a block that holds something else."""
        return not (self.settings.lag or self.settings.planted)

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

    def __init__(self, clock: Clock, registry: RegistryTwin, tally: Counter[str]) -> None:
        self.pools: dict[str, Coordinator] = {}
        self.up = True
        self._clock = clock
        self._survivors = Survivors()
        self._peaks = PeakCheck()
        self._registry = registry
        self._tally = tally

    def receive(self, message: Open | Proposal) -> Answer | None:
        """The answer; None while the service is down."""
        if not self.up:
            return None
        try:
            return self._open(message) if isinstance(message, Open) else self._step(message)
        except (FencedError, UnknownPoolError) as error:
            self._tally["kv refusal"] += 1
            return Refusal(stamp=stamp(message), unknown=isinstance(error, UnknownPoolError), error=str(error))

    def close(self, message: Close) -> None:
        """As KVCacheService.ClosePool: not for a pool that a later epoch has."""
        known = self.pools.get(message.spec.pool)
        if self.up and known is not None and message.spec.epoch >= known.spec.epoch:
            self._survivors.fenced(known)
            del self.pools[message.spec.pool]

    def crash(self) -> None:
        self.up = False
        for pool in self.pools.values():
            self._survivors.crashed(pool)
        self.pools.clear()
        self._registry.service_crashed()

    def restart(self) -> None:
        self.up = True

    def _open(self, message: Open) -> Opened:
        spec = message.spec
        known = self.pools.get(spec.pool)
        content = {} if known else reconcile(self._registry.load(spec), message.content)
        pool = self.pools[spec.pool] = open_pool(known, spec, content, message.holdings, self._clock.now)
        self._registry.record(pool)
        if pool is not known and message.whole:
            self._survivors.renewed(pool, message, self._registry.is_right)
        elif not message.holdings:
            self._survivors.fenced(pool)
        self._check(pool)
        return Opened(epoch=spec.epoch, number=message.number, num_available=pool.pool.num_available)

    def _step(self, proposal: Proposal) -> Grant:
        pool = self.pools.get(proposal.pool)
        if pool is None:
            raise UnknownPoolError(f"pool {proposal.pool} is not open")
        self._peaks.note(proposal)
        sealing = self._survivors.sealing(pool, proposal)
        grant = pool.step(proposal, self._clock.now)
        self._survivors.sealed(pool, sealing)
        self._registry.record(pool)
        self._check(pool)
        return grant

    def _check(self, pool: Coordinator) -> None:
        pool.check()
        self._peaks.check(pool)


def _memory(spec: PoolSpec) -> Memory:
    return spec.pool, spec.incarnation
