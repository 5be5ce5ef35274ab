"""What a seed decides before the run: load, weather and the rates of faults; see shape.py for the geometry."""

from dataclasses import dataclass
from random import Random

from tests.sim.shape import Shape, draw_serial_shape, draw_shape, maybe, with_encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Probabilities for one message of a link."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Mean events a second of virtual time, for each worker (crash, disconnect, fence, drain) or in all (KV crash,
    scheduler crash and drain).

    A pool that a crash made unknown is opened again with its leases with probability ``adopts``, else anew; with
    probability ``tells_tags`` its worker says then what the blocks hold.
    """

    worker_crash: float = 0.0
    disconnect: float = 0.0
    fence: float = 0.0
    kv_crash: float = 0.0
    drain: float = 0.0
    scheduler_crash: float = 0.0
    scheduler_drain: float = 0.0
    adopts: float = 1.0
    tells_tags: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clients arrive within ``span`` seconds; prompt and wanted tokens fit ``max_len``, but for the greedy ones."""

    num_clients: int
    span: float
    max_len: int
    max_requests: int
    cancel_share: float
    greedy_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The share of crashes it outlives; how many seconds writes lag; the share of keys planted with a wrong block."""

    remembers: float = 1.0
    lag: float = 0.0
    planted: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything of a run that is not drawn on the way."""

    seed: int
    shape: Shape
    load: Load
    weather: Weather
    faults: Faults
    registry: Registry

    def random(self, concern: str) -> Random:
        """A stream of its own for each concern, so that one drawing more does not change the others."""
        return Random(f"{self.seed}/{concern}")


def draw_plan(seed: int) -> Plan:
    """The plan of one seed; each kind of fault is off in many."""
    rng, elastic = Random(f"{seed}/plan"), Random(f"{seed}/elastic")
    load = Load(
        num_clients=rng.randint(4, 32),
        span=rng.uniform(0.05, 0.6),
        max_len=rng.randint(6, 64),
        max_requests=rng.choice((4, 1000, 1000, 1000)),
        cancel_share=rng.choice((0.0, 0.1, 0.5)),
        greedy_share=rng.choice((0.0, 0.2)),
    )
    return Plan(
        seed=seed,
        shape=with_encoder(Random(f"{seed}/encoder"), draw_shape(rng, load.max_len)),
        load=load,
        weather=Weather(drop=maybe(rng, 0.2), duplicate=maybe(rng, 0.3), delay=maybe(rng, 0.2)),
        faults=Faults(
            worker_crash=maybe(rng, 10.0),
            disconnect=maybe(rng, 10.0),
            fence=maybe(rng, 8.0),
            kv_crash=maybe(rng, 12.0),
            drain=maybe(elastic, 12.0),
            scheduler_crash=maybe(elastic, 8.0),
            scheduler_drain=maybe(elastic, 6.0),
            adopts=rng.choice((0.5, 1.0, 1.0)),
            tells_tags=rng.choice((0.5, 1.0, 1.0)),
        ),
        registry=Registry(remembers=rng.choice((0.0, 0.5, 1.0)), lag=maybe(rng, 0.2), planted=maybe(rng, 1.0)),
    )


def serial_plan(seed: int) -> Plan:
    """One worker, room for everything, no faults: what is cached is known exactly."""
    rng = Random(f"{seed}/serial")
    load = Load(num_clients=12, span=0.0, max_len=40, max_requests=1, cancel_share=0.0, greedy_share=0.0)
    shape = draw_serial_shape(rng, load.max_len, load.num_clients)
    return Plan(seed=seed, shape=shape, load=load, weather=Weather(), faults=Faults(), registry=Registry())
