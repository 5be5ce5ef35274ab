"""Faults that strike at random times, and their repair."""

from collections.abc import Callable, Sequence
from functools import partial

from tests.sim.host import Host
from tests.sim.world import World

DOWN_SECONDS = (0.001, 0.1)


class Faults:
    """Strikes until ``stop``; what is down then comes back soon by itself."""

    def __init__(self, world: World, hosts: Sequence[Host]) -> None:
        self._world = world
        self._hosts = hosts
        self._rng = world.plan.random("faults")
        self._over = False

    def start(self) -> None:
        rates = self._world.plan.faults
        for host in self._hosts:
            self._repeat(rates.worker_crash, "worker crash", partial(self._lose, host, host.crash))
            self._repeat(rates.disconnect, "disconnect", partial(self._lose, host, host.disconnect))
            self._repeat(rates.fence, "idle fence", host.fence)
        self._repeat(rates.kv_crash, "kv crash", self._crash_kv)

    def stop(self) -> None:
        self._over = True

    def _repeat(self, rate: float, kind: str, strike: Callable[[], None]) -> None:
        if not rate:
            return

        def act() -> None:
            if not self._over:
                self._world.tally[kind] += 1
                strike()
                self._repeat(rate, kind, strike)

        self._world.clock.after(self._rng.expovariate(rate), act)

    def _lose(self, host: Host, how: Callable[[], None]) -> None:
        how()
        self._world.clock.after(self._rng.uniform(*DOWN_SECONDS), host.connect)

    def _crash_kv(self) -> None:
        self._world.trace("kv", "crashes")
        self._world.kv.crash()
        for host in self._hosts:
            if host.driver is not None:
                host.driver.kv_link.break_off()
        self._world.clock.after(self._rng.uniform(*DOWN_SECONDS), self._world.kv.restart)
