"""What a seed decides before the run: geometry, load, weather and the rates of faults."""

from dataclasses import dataclass
from random import Random

from scheduler_svc.core import chunking
from scheduler_svc.core.lane import KeyLookahead
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
class Speculation:
    """The workers' MTP modules, whose number is the lookahead (rule A); one alone is reused for further drafts.

    ``right_percent`` of the guesses are right. A step passes the modules over with probability ``lag``.
    """

    num_modules: int
    max_drafts: int
    right_percent: int
    lag: float
    depth_varies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The workers' memories, and the settings they share."""

    memories: tuple[Memory, ...]
    max_model_len: int
    max_batched_tokens: int
    max_running: int
    policy: Policy
    prefix_caching: bool
    key_lookahead: KeyLookahead
    speculation: Speculation


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
    speculation = _draw_speculation(rng, most_lag=0.0)
    num_slots = load.num_clients * (load.max_len + speculation.max_drafts)
    memories = (Memory(num_blocks=num_slots, block_size=rng.randint(1, 8)),)
    shape = Shape(
        memories=memories,
        max_model_len=load.max_len,
        max_batched_tokens=_least_budget(speculation) + rng.randint(0, 30),
        max_running=rng.randint(1, 4),
        policy=Policy.FCFS,
        prefix_caching=True,
        key_lookahead=_draw_key_lookahead(rng, load, memories, speculation),
        speculation=speculation,
    )
    return Plan(seed=seed, shape=shape, load=load, weather=Weather(), faults=Faults(), registry=Registry())


def _draw_shape(rng: Random, load: Load) -> Shape:
    speculation = _draw_speculation(rng, most_lag=0.5)
    num_slots = load.max_len + speculation.max_drafts
    memories = tuple(_draw_memory(rng, num_slots) for _ in range(rng.randint(1, 3)))
    return Shape(
        memories=memories,
        max_model_len=load.max_len + rng.choice((0, 8)),
        max_batched_tokens=_least_budget(speculation) + rng.choice((0, 1, rng.randint(0, 40))),
        max_running=rng.randint(1, 8),
        policy=rng.choice(tuple(Policy)),
        prefix_caching=rng.random() < 0.85,
        key_lookahead=_draw_key_lookahead(rng, load, memories, speculation),
        speculation=speculation,
    )


def _draw_speculation(rng: Random, most_lag: float) -> Speculation:
    num_modules = rng.choice((0, 0, 1, 2, 4, rng.randint(0, 8)))
    return Speculation(
        num_modules=num_modules,
        max_drafts=rng.choice((1, rng.randint(1, 8))) if num_modules == 1 else num_modules,
        right_percent=rng.choice((0, 50, 80, 100)),
        lag=_maybe(rng, most_lag),
        depth_varies=rng.random() < 0.3,
    )


def _draw_key_lookahead(
    rng: Random, load: Load, memories: tuple[Memory, ...], speculation: Speculation
) -> KeyLookahead:
    """OFF at times, where some prefix can be hit; else no lane would start."""
    blocks_matched = [(-(-speculation.num_modules // memory.block_size) + 1, memory.block_size) for memory in memories]
    possible = all(num_blocks * block_size < load.max_len for num_blocks, block_size in blocks_matched)
    return rng.choice((KeyLookahead.AUTO, KeyLookahead.OFF)) if possible else KeyLookahead.AUTO


def _least_budget(speculation: Speculation) -> int:
    return chunking.min_budget(speculation.num_modules, speculation.max_drafts)


def _draw_memory(rng: Random, num_slots: int) -> Memory:
    """Room for ``num_slots``, barely or a few times over."""
    block_size = rng.randint(1, 8)
    least = -(-num_slots // block_size)
    return Memory(num_blocks=1 + int(least * rng.choice((1.0, 1.5, 2.0, 4.0))), block_size=block_size)


def _maybe(rng: Random, most: float) -> float:
    return rng.choice((0.0, rng.uniform(0.0, most)))
