"""A machine with a worker: it crashes, loses its connection, and comes back."""

from itertools import count

from augury.types import PoolSpec
from scheduler_svc.core.lane import Counters, LaneConfig
from tests.sim.driver import Driver
from tests.sim.worker import Worker
from tests.sim.world import World


class Host:
    """One worker id through its lives. ``lives`` counts memories; a disconnect keeps the memory."""

    def __init__(self, world: World, index: int) -> None:
        self.name = f"w{index}"
        self.driver: Driver | None = None
        self.past: list[Counters] = []
        self._world = world
        self._memory = world.plan.shape.memories[index]
        self._lives = count()
        self._start_worker()

    @property
    def at_rest(self) -> bool:
        """Connected, asking nothing and without work."""
        return self.driver is not None and self.driver.at_rest

    @property
    def counters(self) -> list[Counters]:
        lane = self.driver.lane if self.driver else None
        return [*self.past, lane.counters] if lane else self.past

    def connect(self) -> None:
        """Register with the scheduler, if not registered."""
        if self.driver is None:
            self._world.trace(self.name, f"connects as {self._incarnation}")
            self.driver = Driver(self._world, self._config(), self._spec(), self.worker)
            self._world.wakers[self.name] = self.driver.wake

    def disconnect(self) -> None:
        """The scheduler loses the worker."""
        if self.driver is None:
            return
        self._world.trace(self.name, "is gone")
        del self._world.wakers[self.name]
        self.driver.stop()
        if self.driver.lane is not None:
            self.past.append(self.driver.lane.counters)
        self.driver = None
        self._world.publish(self._world.cluster.leave(self.name))
        self._world.wake_all()

    def crash(self) -> None:
        """The worker's memory is lost too."""
        self.disconnect()
        self._start_worker()

    def fence(self) -> None:
        if self.driver is not None:
            self._world.trace(self.name, "fences")
            self.driver.fence()

    def _start_worker(self) -> None:
        self._incarnation = f"{self.name}.{next(self._lives)}"
        rng = self._world.plan.random(f"memory/{self._incarnation}")
        self.worker = Worker(self._world.plan.shape, self._memory, rng, self._world.clients)

    def _config(self) -> LaneConfig:
        return self._world.plan.shape.lane_config(self._memory, self.name)

    def _spec(self) -> PoolSpec:
        """Without an epoch yet: a driver begins with a fence."""
        return PoolSpec(
            pool=self.name,
            incarnation=self._incarnation,
            fingerprint="hashes",
            epoch=0,
            num_blocks=self._memory.num_blocks,
            groups=self._memory.groups,
        )
