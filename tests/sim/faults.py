"""Faults that strike at random times, and their repair."""

from collections.abc import Callable, Sequence
from functools import partial

from tests.sim.host import Host
from tests.sim.world import World

DOWN_SECONDS = (0.001, 0.1)
DRAIN_SECONDS = 0.05


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
            self._repeat(rates.drain, "drain", host.drain)
        self._repeat(rates.kv_crash, "kv crash", self._crash_kv)
        self._repeat(rates.scheduler_crash, "scheduler crash", self._crash_scheduler)
        self._repeat(rates.scheduler_drain, "scheduler drain", self._drain_scheduler)

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

    def _crash_scheduler(self) -> None:
        """Workers and gateways find its successor each in its own time."""
        self._world.trace("scheduler", "crashes")
        for host in self._hosts:
            host.lose_scheduler()
        self._world.restart_scheduler()
        for host in self._hosts:
            self._world.clock.after(self._rng.uniform(*DOWN_SECONDS), host.connect)

    def _drain_scheduler(self) -> None:
        """As SchedulerService.drain: nothing new, what waits for a worker goes elsewhere, and the end comes in time."""
        self._world.trace("scheduler", "drains")
        ending = self._world.cluster
        self._world.publish(self._world.clients.turned_away())

        def end() -> None:
            if self._world.cluster is ending:
                self._crash_scheduler()

        self._world.clock.after(DRAIN_SECONDS, end)

    def _crash_kv(self) -> None:
        self._world.trace("kv", "crashes")
        self._world.kv.crash()
        for host in self._hosts:
            if host.driver is not None:
                host.driver.kv_link.break_off()
        self._world.clock.after(self._rng.uniform(*DOWN_SECONDS), self._world.kv.restart)
