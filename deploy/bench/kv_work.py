"""What `augury bench kv` has done by a KV cache manager, whosever it is: prompts, the order of events, and the clock.

It needs the standard library alone, because the reference engine is measured in an environment of its own. Each side
prints its figures as one line of JSON.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

BLOCK_SIZE = 16
VOCAB_SIZE = 151_936

T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``prompt`` tokens are looked up, ``runs`` times; ``blocks`` fill the large pool.

    ``requests`` decode at once for ``iterations``, each ``output`` tokens after ``before``, half of which all share.
    ``window`` is that of the second group where there are two.
    """

    prompt: int
    runs: int
    blocks: int
    requests: int
    iterations: int
    before: int = 512
    output: int = 256
    window: int = 128

    @property
    def prompt_blocks(self) -> int:
        return self.prompt // BLOCK_SIZE

    @property
    def num_hit(self) -> int:
        """Tokens that a lookup of the prompt finds: whole blocks, and one token remains to be computed."""
        return (self.prompt - 1) // BLOCK_SIZE * BLOCK_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsFigures:
    """CPU microseconds per block of a long prompt: making its keys, finding them all (``hit``), finding them and taking
    the blocks over, giving them back. ``gap`` is a lookup that finds all but what a window needs.

    ``miss_us`` is a whole lookup that finds nothing, ``iteration_ms`` what the manager does between two steps.
    """

    keys_us: float
    hit_us: float
    gap_us: float | None
    admission_us: float
    release_us: float
    miss_us: float
    iteration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """A large pool, every block of which is filled, named and given back once: CPU microseconds and resident bytes per
    block. ``hit_us`` as in GroupsFigures, for prompts that nobody has touched since.
    """

    fill_us: float
    hit_us: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """``full`` is one group that sees every token; ``hybrid`` has a second one with a window."""

    manager: str
    full: GroupsFigures
    hybrid: GroupsFigures
    pool: PoolFigures


class Clock:
    """CPU time of what the manager itself does; whatever its caller prepares is not counted."""

    def __init__(self) -> None:
        self._spent_s = 0.0

    def __call__(self, work: Callable[[], T]) -> T:
        started = time.thread_time()
        result = work()
        self._spent_s += time.thread_time() - started
        return result

    def spent_s(self, call: Callable[[], object]) -> float:
        """Seconds counted during ``call``."""
        self._spent_s = 0.0
        call()
        return self._spent_s


class Cache(Protocol[P]):
    """A KV cache manager, its own work counted by the clock it was made with."""

    def named(self, tokens: Sequence[int], num_known: int) -> P:
        """A request that starts with ``num_known`` of its ``tokens``; the clock counts the making of all keys."""
        ...

    def look_up(self, request: P) -> int:
        """Tokens of the request that are found."""
        ...

    def admit(self, request: P) -> None:
        """Take over what is found and get slots for the rest, to be computed in one step."""
        ...

    def seal(self, request: P) -> None:
        """All known tokens are computed: what is full can be found from now on."""
        ...

    def release(self, request: P) -> None: ...

    def lose_windows(self, request: P) -> None:
        """Not counted: of a released request nothing is found any more that belongs to a window group."""
        ...

    def iterate(self, running: Sequence[P], ended: Sequence[P], begun: Sequence[P]) -> None:
        """The ``running`` have got one token more, the ``ended`` got their last one, the ``begun`` are admitted."""
        ...


Make = Callable[[tuple[int | None, ...], int, Clock], Cache[P]]
"""A cache with a group for each window, None for all tokens, that can hand out so many blocks."""


def main(manager: str, make: Make[P]) -> None:
    """Measures with the load that the command line holds as JSON, and prints the figures."""
    print(json.dumps(asdict(measure(manager, make, Load(**json.loads(sys.argv[1]))))))


def measure(manager: str, make: Make[P], load: Load) -> Figures:
    """The large pool comes first, while the process holds nothing else."""
    gc.disable()
    pool = _measure_pool(make, load)
    full, hybrid = (_measure_groups(make, load, windows) for windows in ((None,), (None, load.window)))
    return Figures(manager=manager, full=full, hybrid=hybrid, pool=pool)


def _measure_groups(make: Make[P], load: Load, windows: tuple[int | None, ...]) -> GroupsFigures:
    clock = Clock()
    cache = make(windows, len(windows) * (load.prompt_blocks + 1), clock)
    tokens, others = long_prompt(0, load.prompt), long_prompt(1, load.prompt)
    keys = [clock.spent_s(partial(cache.named, tokens, load.prompt)) for _ in range(load.runs)]
    _fill(cache, cache.named(tokens, load.prompt))
    hits = [_lookup_s(cache, tokens, clock, load.num_hit) for _ in range(load.runs)]
    misses = [_lookup_s(cache, others, clock, 0) for _ in range(load.runs)]
    stays = [_stay_s(cache, tokens, clock) for _ in range(load.runs)]
    gaps = []
    if len(windows) > 1:
        cache.lose_windows(cache.named(tokens, load.prompt))
        gaps = [_lookup_s(cache, tokens, clock, 0) for _ in range(load.runs)]
    us_per_block = 1e6 / load.prompt_blocks
    return GroupsFigures(
        keys_us=median(keys) * us_per_block,
        hit_us=median(hits) * us_per_block,
        gap_us=median(gaps) * us_per_block if gaps else None,
        admission_us=median(admission for admission, _ in stays) * us_per_block,
        release_us=median(release for _, release in stays) * us_per_block,
        miss_us=median(misses) * 1e6,
        iteration_ms=median(iterations_s(make, load, windows)) * 1e3,
    )


def _measure_pool(make: Make[P], load: Load) -> PoolFigures:
    clock = Clock()
    num_prompts = max(load.blocks // load.prompt_blocks, 1)
    num_blocks = num_prompts * load.prompt_blocks
    before = _resident_bytes()
    cache = make((None,), num_blocks, clock)
    fill_s = 0.0
    for index in range(num_prompts):
        request = cache.named(long_prompt(index, load.prompt), load.prompt)
        fill_s += clock.spent_s(partial(_fill, cache, request))
    del request
    gc.collect()
    after = _resident_bytes()
    seen = [index * num_prompts // load.runs for index in range(load.runs)]
    hits = [_lookup_s(cache, long_prompt(index, load.prompt), clock, load.num_hit) for index in seen]
    return PoolFigures(
        fill_us=fill_s * 1e6 / num_blocks,
        hit_us=median(hits) * 1e6 / load.prompt_blocks,
        memory_bytes=(after - before) / num_blocks,
    )


def _fill(cache: Cache[P], request: P) -> None:
    cache.admit(request)
    cache.seal(request)
    cache.release(request)


def _lookup_s(cache: Cache[P], tokens: Sequence[int], clock: Clock, num_hit: int) -> float:
    request = cache.named(tokens, len(tokens))
    found = []
    spent_s = clock.spent_s(lambda: found.append(cache.look_up(request)))
    assert found == [num_hit], f"{found[0]} tokens are found, not {num_hit}"
    return spent_s


def _stay_s(cache: Cache[P], tokens: Sequence[int], clock: Clock) -> tuple[float, float]:
    """Seconds of the admission and of the release."""
    request = cache.named(tokens, len(tokens))
    return clock.spent_s(partial(cache.admit, request)), clock.spent_s(partial(cache.release, request))


def iterations_s(make: Make[P], load: Load, windows: tuple[int | None, ...]) -> Iterator[float]:
    """Seconds of each iteration, once every request of the beginning has ended and the pool holds what they left."""
    clock = Clock()
    longest = -(-(load.before + load.output) // BLOCK_SIZE)
    cache = make(windows, load.requests * longest * len(windows), clock)
    running: list[tuple[int, P]] = []
    num_begun = 0
    for iteration in range(load.output + load.iterations):
        ended = [request for end, request in running if end == iteration]
        running = [(end, request) for end, request in running if end > iteration]
        begun = []
        for place in range(len(running), load.requests):
            # Those of the first iteration are spread over their output, so that as many end in each iteration.
            num_output = 1 + place * load.output // load.requests if iteration == 0 else load.output
            tokens = short_prompt(num_begun, load)
            begun.append((iteration + num_output, cache.named(tokens, len(tokens) - num_output)))
            num_begun += 1
        spent_s = clock.spent_s(
            partial(cache.iterate, [request for _, request in running], ended, [request for _, request in begun])
        )
        running += begun
        if iteration >= load.output:
            yield spent_s


def long_prompt(index: int, length: int) -> list[int]:
    """Prompts of different ``index`` share no block."""
    return [(index * 7919 + position) % VOCAB_SIZE for position in range(length)]


def short_prompt(index: int, load: Load) -> list[int]:
    """Prompt and output of a request; half of the prompt is the same for all."""
    num_shared = load.before // 2
    return [*range(num_shared), *long_prompt(index + 1, load.before + load.output - num_shared)]


def _resident_bytes() -> int:
    # proc_pid_statm(5): the second number is the resident set in pages.
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
