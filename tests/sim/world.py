"""What everything in a simulation shares."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count

from augury.types import Delta
from scheduler_svc.core.cluster import Cluster
from tests.sim.clients import Clients
from tests.sim.clock import Clock
from tests.sim.kv import KvServer, RegistryTwin
from tests.sim.link import Link, Sky
from tests.sim.plan import Plan, Weather

Trace = Callable[[str], None]


class World:
    """The clock, the cluster under test, the KV service, the clients and the weather between them."""

    def __init__(self, plan: Plan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.clock = Clock()
        self.tally: Counter[str] = Counter()
        self.sky = Sky(plan.random("weather"), plan.weather, self.tally)
        self.registry = RegistryTwin(self.clock, plan.random("registry"), plan.registry)
        self.kv = KvServer(self.clock, self.registry, self.tally)
        self.cluster = Cluster(plan.load.max_requests)
        self.epochs = count(1)
        self.clients = Clients(self.clock, plan, self.cluster, self.wake_all)
        self.wakers: dict[str, Callable[[], None]] = {}
        self._trace = trace

    def link(self) -> Link:
        return Link(self.clock, self.sky)

    def publish(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self.trace("", delta)
            self.clients.take(delta)

    def wake_all(self) -> None:
        for wake in list(self.wakers.values()):
            wake()

    def other_lanes(self, name: str) -> list[str]:
        """Workers that could go on with the requests of the one with this name."""
        return [other for other in self.cluster.lanes if other != name and other not in self.cluster.draining]

    def restart_scheduler(self) -> None:
        """Nothing of what the scheduler knew is left."""
        self.cluster = Cluster(self.plan.load.max_requests)
        self.clients.lose_scheduler(self.cluster)

    def calm(self) -> None:
        """No faults from now on."""
        self.trace("calm", "")
        self.sky.weather = Weather()

    def trace(self, who: str, what: object) -> None:
        if self._trace:
            self._trace(f"{self.clock.now * 1000:10.3f} ms  {who:<4} {what}")
