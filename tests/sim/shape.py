"""What a seed decides of the model, the workers' memories and the settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from augury.geometry import KvGroup, peak_blocks
from scheduler_svc.core import chunking
from scheduler_svc.core.lane import KeyLookahead, LaneConfig
from scheduler_svc.core.policy import Policy
from tests.sim.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One worker's KV. ``num_blocks`` counts the null block."""

    num_blocks: int
    groups: tuple[KvGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How the workers' MTP modules are used, whose number is the lookahead (rule A); one alone is reused for further
    drafts.

    ``right_percent`` of the guesses are right. A step passes the modules over with probability ``lag``; where a window
    group holds drafts, at most ``max_lag`` rows are left behind so. ``stops``: verification ends with a stop token.
    """

    num_modules: int
    max_drafts: int
    right_percent: int
    lag: float
    max_lag: int
    depth_varies: bool
    stops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The model, the workers' memories, and the settings they share.

    The workers' encoders make so many embeddings in a step, and keep so many; 0 of both: there is none.
    """

    model: Model
    memories: tuple[Memory, ...]
    max_model_len: int
    max_batched_tokens: int
    max_running: int
    policy: Policy
    prefix_caching: bool
    key_lookahead: KeyLookahead
    speculation: Speculation
    encoder: tuple[int, int] = (0, 0)

    def lane_config(self, memory: Memory, pool: str) -> LaneConfig:
        """Raises ValueError where a lane of these settings must not start."""
        return LaneConfig(
            pool=pool,
            fingerprint="hashes",
            num_blocks=memory.num_blocks,
            groups=memory.groups,
            max_model_len=self.max_model_len,
            max_batched_tokens=self.max_batched_tokens,
            max_running=self.max_running,
            policy=self.policy,
            prefix_caching=self.prefix_caching,
            key_lookahead=self.key_lookahead,
            num_prefill_lookahead=self.speculation.num_modules,
            max_drafts=self.speculation.max_drafts,
            encoder_budget=self.encoder[0],
            encoder_cache=self.encoder[1],
        )


def draw_shape(rng: Random, max_len: int) -> Shape:
    """Memories with room for ``max_len`` tokens, barely or a few times over."""
    speculation = _draw_speculation(rng, most_lag=0.5)
    model = _draw_model(rng, max_len, speculation.num_modules)
    max_batched_tokens = _least_budget(speculation) + rng.choice((0, 1, rng.randint(0, 40)))
    num_slots, num_ahead = max_len + speculation.max_drafts, max_batched_tokens + speculation.max_drafts
    memories = []
    for _ in range(rng.randint(1, 3)):
        groups = make_groups(model, speculation, _draw_block_sizes(rng, len(model.windows)))
        least = peak_blocks(groups, num_slots, num_ahead)
        memories.append(Memory(num_blocks=1 + int(least * rng.choice((1.0, 1.5, 2.0, 4.0))), groups=groups))
    shape = Shape(
        model=model,
        memories=tuple(memories),
        max_model_len=max_len + rng.choice((0, 8)),
        max_batched_tokens=max_batched_tokens,
        max_running=rng.randint(1, 8),
        policy=rng.choice(tuple(Policy)),
        prefix_caching=rng.random() < 0.85,
        key_lookahead=rng.choice(tuple(KeyLookahead)),
        speculation=speculation,
    )
    return _that_starts(shape)


def with_encoder(rng: Random, shape: Shape) -> Shape:
    """At times with one, of little room."""
    return replace(shape, encoder=(rng.randint(2, 12), rng.randint(2, 12))) if rng.random() < 0.3 else shape


def draw_serial_shape(rng: Random, max_len: int, num_requests: int) -> Shape:
    """One memory with room for everything, so that what is cached is known exactly."""
    speculation = _draw_speculation(rng, most_lag=0.0)
    model = _draw_model(rng, max_len, speculation.num_modules)
    groups = make_groups(model, speculation, _draw_block_sizes(rng, len(model.windows)))
    num_blocks = num_requests * (max_len + speculation.max_drafts) * len(groups)
    # Plain keys name a draft block so late that a shorter window leaves it behind before it can be sealed.
    late = any(group.has_drafts and group.window and group.window < group.block_size for group in groups)
    shape = Shape(
        model=model,
        memories=(Memory(num_blocks=num_blocks, groups=groups),),
        max_model_len=max_len,
        max_batched_tokens=_least_budget(speculation) + rng.randint(0, 30),
        max_running=rng.randint(1, 4),
        policy=Policy.FCFS,
        prefix_caching=True,
        key_lookahead=KeyLookahead.AUTO if late else rng.choice(tuple(KeyLookahead)),
        speculation=replace(speculation, stops=True),
    )
    return _that_starts(shape)


def make_groups(model: Model, speculation: Speculation, block_sizes: Sequence[int]) -> tuple[KvGroup, ...]:
    """The groups as a worker describes them."""
    retained = max(0, speculation.num_modules - 1 + speculation.max_lag)
    groups = []
    for group, (window, block_size) in enumerate(zip(model.windows, block_sizes, strict=True)):
        drafts, sliding = group in model.modules, window is not None
        groups.append(
            KvGroup(
                block_size=block_size,
                window=window,
                has_drafts=drafts,
                num_retained=retained if drafts and sliding else 0,
                num_rebuilt=_num_rebuilt(model, group),
            )
        )
    return tuple(groups)


def maybe(rng: Random, most: float) -> float:
    return rng.choice((0.0, rng.uniform(0.0, most)))


def _num_rebuilt(model: Model, group: int) -> int | None:
    """Rows after which recomputed drafts are exact; only where no module of another group reads what is not."""
    window = model.windows[group]
    if window is None or group in model.target or group not in model.modules:
        return None
    behind = model.modules[model.modules.index(group) :]
    return len(behind) * (window - 1) if set(behind) == {group} else None


def _draw_speculation(rng: Random, most_lag: float) -> Speculation:
    num_modules = rng.choice((0, 0, 1, 2, 4, rng.randint(0, 8)))
    lag = maybe(rng, most_lag)
    return Speculation(
        num_modules=num_modules,
        max_drafts=rng.choice((1, rng.randint(1, 8))) if num_modules == 1 else num_modules,
        right_percent=rng.choice((0, 50, 80, 100)),
        lag=lag,
        max_lag=rng.randint(1, 8) if lag else 0,
        depth_varies=rng.random() < 0.3,
        stops=rng.random() < 0.5,
    )


def _draw_model(rng: Random, max_len: int, num_modules: int) -> Model:
    """One to three groups; a module shares a group of the target, or its window makes a group of drafts only."""
    windows = [_draw_window(rng, max_len) for _ in range(rng.choice((1, 2, 2, 3)))]
    own_window = rng.choice((None, rng.randint(1, 4)))
    windows = list(dict.fromkeys([*windows[:2], own_window] if num_modules and own_window else windows))
    num_target = max(1, len(windows) - rng.randint(0, 1)) if num_modules else len(windows)
    target = [*range(num_target), *rng.choices(range(num_target), k=rng.randint(0, 1))]
    rng.shuffle(target)
    own = range(num_target, len(windows))
    others = own if own and rng.random() < 0.5 else range(len(windows))
    modules = [*own, *rng.choices(others, k=num_modules)][:num_modules]
    rng.shuffle(modules)
    return _in_order(rng, windows, target, modules)


def _in_order(rng: Random, windows: list[int | None], target: list[int], modules: list[int]) -> Model:
    """The groups that have a layer, in random order."""
    used = sorted({*target, *modules})
    rng.shuffle(used)
    return Model(
        windows=tuple(windows[group] for group in used),
        target=tuple(map(used.index, target)),
        modules=tuple(map(used.index, modules)),
    )


def _draw_window(rng: Random, max_len: int) -> int | None:
    """Everything, or a few tokens, or any number up to more than a sequence has."""
    return rng.choice((None, None, rng.randint(1, 3), rng.randint(1, 8), rng.randint(1, max_len + 4)))


def _draw_block_sizes(rng: Random, num_groups: int) -> list[int]:
    """Equal ones, or such that their least common multiple stays small."""
    if rng.random() < 0.3:
        return [rng.randint(1, 8)] * num_groups
    return rng.choices(rng.choice(((1, 2, 4), (2, 3), (2, 4, 8), (2, 3, 4, 6), (1, 3, 6), (4, 6))), k=num_groups)


def _that_starts(shape: Shape) -> Shape:
    """The shape, with keys that cover the lookahead where no lane starts without."""
    try:
        for memory in shape.memories:
            shape.lane_config(memory, "any")
    except ValueError:
        return replace(shape, key_lookahead=KeyLookahead.AUTO)
    return shape


def _least_budget(speculation: Speculation) -> int:
    return chunking.min_budget(speculation.num_modules, speculation.max_drafts)
