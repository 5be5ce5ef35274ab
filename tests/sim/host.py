"""A machine with a worker: it crashes, loses its connection, leaves, and comes back."""

from itertools import count

from augury.types import PoolSpec
from scheduler_svc.core.lane import Counters, LaneConfig
from tests.sim.driver import Driver
from tests.sim.messages import Close
from tests.sim.worker import Worker
from tests.sim.world import World

RETURN_SECONDS = 0.03
"""From a release to the next life."""


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
            self.driver = Driver(self._world, self._config(), self._spec(), self.worker, self._retire)
            self._world.wakers[self.name] = self.driver.wake

    def disconnect(self) -> None:
        """The scheduler loses the worker."""
        if self.driver is None:
            return
        self.lose_scheduler()
        self._world.publish(self._world.cluster.leave(self.name))
        assert self.name not in self._world.cluster.lanes, f"{self.name} is gone, but has a lane"
        self._world.wake_all()

    def lose_scheduler(self) -> None:
        """What the scheduler said is under way still, but nothing more comes from there."""
        if self.driver is None:
            return
        self._world.trace(self.name, "is gone")
        del self._world.wakers[self.name]
        self.driver.stop()
        if self.driver.lane is not None:
            self.past.append(self.driver.lane.counters)
        self.driver = None

    def drain(self) -> None:
        """Ask to leave. Once it may, it goes, and a new life begins after a while."""
        if self.driver is not None:
            self._world.trace(self.name, "drains")
            self._world.cluster.drain(self.name)
            self.driver.drain()

    def crash(self) -> None:
        """The worker's memory is lost too."""
        self.disconnect()
        self._start_worker()

    def fence(self) -> None:
        if self.driver is not None:
            self._world.trace(self.name, "fences")
            self.driver.fence()

    def _retire(self) -> None:
        """As SchedulerService.Register ends for a worker that is released."""
        assert self.driver is not None and self.driver.lane is not None
        others = self._world.other_lanes(self.name)
        assert others or not self.driver.lane.has_work, f"{self.name} is let go, but nobody can go on with its requests"
        self._world.tally["released"] += 1
        self.driver.kv_link.send(Close(spec=self.driver.spec), self._world.kv.close)
        self.crash()
        self._world.clock.after(RETURN_SECONDS, self.connect)

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
