"""What a seed decides before the run: geometry, load, weather and the rates of faults."""

from dataclasses import dataclass
from random import Random

from scheduler_svc.core.chunking import min_budget
from scheduler_svc.core.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Probabilities for one message of a link."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Mean events a second of virtual time, for each worker (crash, disconnect, fence) or in all (KV crash)."""

    worker_crash: float = 0.0
    disconnect: float = 0.0
    fence: float = 0.0
    kv_crash: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One worker's KV. ``num_blocks`` counts the null block."""

    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The workers' memories, and the settings they share."""

    memories: tuple[Memory, ...]
    max_model_len: int
    max_batched_tokens: int
    max_running: int
    policy: Policy
    prefix_caching: bool
    lookahead: int


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
    rng = Random(f"{seed}/plan")
    load = Load(
        num_clients=rng.randint(4, 48),
        span=rng.uniform(0.05, 0.6),
        max_len=rng.randint(6, 64),
        max_requests=rng.choice((4, 1000, 1000, 1000)),
        cancel_share=rng.choice((0.0, 0.1, 0.5)),
        greedy_share=rng.choice((0.0, 0.2)),
    )
    return Plan(
        seed=seed,
        shape=_draw_shape(rng, load),
        load=load,
        weather=Weather(drop=_maybe(rng, 0.2), duplicate=_maybe(rng, 0.3), delay=_maybe(rng, 0.2)),
        faults=Faults(
            worker_crash=_maybe(rng, 10.0),
            disconnect=_maybe(rng, 10.0),
            fence=_maybe(rng, 8.0),
            kv_crash=_maybe(rng, 12.0),
        ),
        registry=Registry(remembers=rng.choice((0.0, 0.5, 1.0)), lag=_maybe(rng, 0.2), planted=_maybe(rng, 1.0)),
    )


def serial_plan(seed: int) -> Plan:
    """One worker, room for everything, no faults: what is cached is known exactly."""
    rng = Random(f"{seed}/serial")
    load = Load(num_clients=16, span=0.0, max_len=40, max_requests=1, cancel_share=0.0, greedy_share=0.0)
    lookahead = rng.randint(0, 8)
    shape = Shape(
        memories=(Memory(num_blocks=load.num_clients * (load.max_len + lookahead), block_size=rng.randint(1, 8)),),
        max_model_len=load.max_len,
        max_batched_tokens=min_budget(lookahead) + rng.randint(0, 30),
        max_running=rng.randint(1, 4),
        policy=Policy.FCFS,
        prefix_caching=True,
        lookahead=lookahead,
    )
    return Plan(seed=seed, shape=shape, load=load, weather=Weather(), faults=Faults(), registry=Registry())


def _draw_shape(rng: Random, load: Load) -> Shape:
    lookahead = rng.choice((0, 0, 1, 2, 4, rng.randint(0, 8)))
    return Shape(
        memories=tuple(_draw_memory(rng, load.max_len + lookahead) for _ in range(rng.randint(1, 3))),
        max_model_len=load.max_len + rng.choice((0, 8)),
        max_batched_tokens=min_budget(lookahead) + rng.choice((0, 1, rng.randint(0, 40))),
        max_running=rng.randint(1, 8),
        policy=rng.choice(tuple(Policy)),
        prefix_caching=rng.random() < 0.85,
        lookahead=lookahead,
    )


def _draw_memory(rng: Random, num_slots: int) -> Memory:
    """Room for ``num_slots``, barely or a few times over."""
    block_size = rng.randint(1, 8)
    least = -(-num_slots // block_size)
    return Memory(num_blocks=1 + int(least * rng.choice((1.0, 1.5, 2.0, 4.0))), block_size=block_size)


def _maybe(rng: Random, most: float) -> float:
    return rng.choice((0.0, rng.uniform(0.0, most)))
