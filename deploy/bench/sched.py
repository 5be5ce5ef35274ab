"""`augury bench sched`: CPU time that the scheduler and KV cores take for an iteration, and to place a request."""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from augury.geometry import KvGroup
from augury.types import Generation, Outcome, PoolSpec, SamplingParams, Step, StopParams
from deploy.bench import placing
from deploy.bench.placing import Placing
from kvcache_svc.core.coordinator import Coordinator
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler

BUDGET_MS = 1.0
"""DESIGN §2: scheduler and KV core together, at 256 running requests."""

BLOCK_SIZE = 16
GROUPS = (KvGroup(block_size=BLOCK_SIZE),)
TOKEN = 7

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``requests`` decode at the same time, each after ``prompt`` tokens; ``iterations`` of them make a run."""

    requests: int
    prompt: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """CPU milliseconds of one iteration, the mean over a run."""

    scheduler_ms: float
    kv_ms: float

    @property
    def total_ms(self) -> float:
        return self.scheduler_ms + self.kv_ms


class Loop:
    """The two cores with the clock between them. Every request that runs is given the same token."""

    def __init__(self, load: Load) -> None:
        longest = load.prompt + BLOCK_SIZE + load.iterations + 2
        num_blocks = load.requests * (longest // BLOCK_SIZE + 2)
        spec = PoolSpec(pool="w", incarnation="i", fingerprint="f", epoch=1, num_blocks=num_blocks, groups=GROUPS)
        config = LaneConfig(
            pool="w",
            fingerprint="f",
            num_blocks=num_blocks,
            groups=GROUPS,
            max_model_len=longest,
            max_batched_tokens=load.requests * longest,
            max_running=load.requests,
        )
        self.scheduler_s = self.kv_s = 0.0
        self._num_computed = Counter[int]()
        self._kv = Coordinator(spec)
        self._scheduler = Scheduler(config, epoch=1, num_available=self._kv.pool.num_available)
        for index in range(load.requests):
            # Lengths differ within a block, so that the requests need their next block in different iterations.
            prompt = tuple(range(index, index + load.prompt + index % BLOCK_SIZE))
            stopping = StopParams(max_tokens=longest - len(prompt))
            generation = Generation(request_id="", prompt=prompt, sampling=SamplingParams(), stopping=stopping)
            self._scheduler.submit(Request(handle=index, generation=generation, arrival=index))

    def iterate(self) -> None:
        scheduler = self._scheduler
        proposal = self._scheduled(scheduler.propose)
        grant = None if proposal is None else self._kv_step(lambda: self._kv.step(proposal))
        step = self._scheduled(lambda: scheduler.dispatch(grant))
        assert step is not None
        outcome = self._outcome(step)
        self._scheduled(lambda: scheduler.apply(outcome))

    def _outcome(self, step: Step) -> Outcome:
        """What a worker without drafts answers: a token for each row, and every computed token is final."""
        self._num_computed.update({row.handle: row.num_new for row in step.rows})
        return Outcome(
            epoch=step.epoch,
            seq=step.seq,
            emitted=((TOKEN,),) * len(step.rows),
            num_drafts=(0,) * len(step.rows),
            num_final=tuple(self._num_computed[row.handle] for row in step.rows),
        )

    def _scheduled(self, call: Callable[[], T]) -> T:
        started = time.thread_time()
        result = call()
        self.scheduler_s += time.thread_time() - started
        return result

    def _kv_step(self, call: Callable[[], T]) -> T:
        started = time.thread_time()
        result = call()
        self.kv_s += time.thread_time() - started
        return result


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark; 0 where the medians are within their budgets, 1 where not, 2 for wrong options."""
    parser = argparse.ArgumentParser(prog="augury bench sched", description=__doc__)
    parser.add_argument("--requests", type=int, default=256, help="decoding at once (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens before (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=160, help="of one run (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="whose median is taken (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(argv)
    if min(options.requests, options.prompt, options.iterations, options.runs) < 1:
        parser.error("numbers must be at least 1")
    load = Load(requests=options.requests, prompt=options.prompt, iterations=options.iterations)
    figures = middle([measure(load) for _ in range(options.runs)])
    placed = placing.measure()
    print(table(load, figures, placed))
    if options.json:
        report = {"load": asdict(load), "budget_ms": BUDGET_MS, "median": asdict(figures), "placing": asdict(placed)}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if figures.total_ms <= BUDGET_MS and placed.cost_ms <= placing.BUDGET_MS else 1


def measure(load: Load) -> Figures:
    """One run. The first iteration computes all prompts and the second owes their seals: neither is counted."""
    loop = Loop(load)
    loop.iterate()
    loop.iterate()
    loop.scheduler_s = loop.kv_s = 0.0
    for _ in range(load.iterations):
        loop.iterate()
    return Figures(scheduler_ms=loop.scheduler_s * 1e3 / load.iterations, kv_ms=loop.kv_s * 1e3 / load.iterations)


def middle(runs: Sequence[Figures]) -> Figures:
    """The median of each part."""
    return Figures(scheduler_ms=median(r.scheduler_ms for r in runs), kv_ms=median(r.kv_ms for r in runs))


def table(load: Load, figures: Figures, placed: Placing) -> str:
    """The figures as text."""
    lines = [
        f"{load.requests} running requests, {load.prompt} prompt tokens; CPU ms per iteration",
        f"scheduler  {figures.scheduler_ms:6.3f}",
        f"KV cache   {figures.kv_ms:6.3f}",
        f"sum        {figures.total_ms:6.3f}  of {BUDGET_MS:.3f}",
        f"placing a request of {placing.NUM_PROMPT} tokens among {placing.NUM_LANES} lanes of {placing.NUM_REQUESTS}",
        f"by cost    {placed.cost_ms:6.3f}  of {placing.BUDGET_MS:.3f}; by fewest requests {placed.fewest_ms:.3f}",
    ]
    return "\n".join(lines)
