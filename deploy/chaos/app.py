"""`augury chaos`: kills, hangs, drains and scales every service under load, and compares every text."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.bench.options import positive
from deploy.chaos.driver import Driver
from deploy.chaos.leaks import wait_for_leaks
from deploy.chaos.load import Answer, Load
from deploy.chaos.plan import make_plan
from deploy.chaos.stack import Stack
from deploy.chaos.verdict import Verdict, judge, report
from deploy.chaos.wishes import Wish, make_wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``num_streams`` at least are asked, ``num_wishes`` of them different, ``num_open`` at a time."""

    seed: int
    num_wishes: int
    num_streams: int
    num_open: int
    num_kills: int
    num_others: int


def main(argv: Sequence[str]) -> int:
    """0 where nobody noticed anything, 1 where somebody did. Raises ValueError, OSError where nothing can be tried."""
    parser = argparse.ArgumentParser(prog="augury chaos", description=__doc__)
    add = parser.add_argument
    add("--model", default="story", help="folder of the model, or its name; its context must be 512 or more")
    add("--seed", type=int, default=0, help="of faults and requests (default: %(default)s)")
    add("--streams", type=positive, default=200, help="answers to compare at least (default: %(default)s)")
    add("--kills", type=positive, default=32, help="how often to kill a process (default: %(default)s)")
    add("--others", type=int, default=16, help="how often to do something else to one (default: %(default)s)")
    add("--open", type=positive, default=16, help="streams at a time (default: %(default)s)")
    add("--keep-logs", type=Path, metavar="DIR", help="write what each process prints there")
    options = parser.parse_args(argv)
    from worker_svc.model.named import ready_folder

    run = Run(
        seed=options.seed,
        num_wishes=min(options.streams, 100),
        num_streams=options.streams,
        num_open=options.open,
        num_kills=options.kills,
        num_others=options.others,
    )
    stack = Stack(ready_folder(options.model, {}, progress=True))
    try:
        with stack:
            verdict = asyncio.run(try_out(stack, run, options.model))
    except RuntimeError as error:
        _tell(f"augury chaos: {error}")
        return 1
    finally:
        if options.keep_logs is not None:
            write_logs(stack, options.keep_logs)
    print(report(verdict))
    return 0 if verdict.is_good else 1


async def try_out(stack: Stack, run: Run, model: str) -> Verdict:
    """All wishes in quiet, then under faults."""
    stack.until_whole()
    wishes = make_wishes(run.seed, run.num_wishes, model)
    _tell(f"{run.num_wishes} requests without a fault, then with {run.num_kills + run.num_others} (seed {run.seed})")
    quiet = await _quiet(stack, wishes, run.num_open)
    load, driver = Load(wishes=wishes, urls=stack.urls), Driver(stack, _tell)
    disturbing = asyncio.create_task(driver.carry_out(make_plan(run.seed, run.num_kills, run.num_others)))
    started = time.monotonic()
    await load.run(run.num_open, lambda: disturbing.done() and len(load.answers) + load.num_open >= run.num_streams)
    await disturbing
    _tell(f"over after {time.monotonic() - started:.0f} s")
    return judge(quiet, load.answers, driver.struck, await asyncio.to_thread(wait_for_leaks, stack))


async def _quiet(stack: Stack, wishes: Sequence[Wish], num_open: int) -> dict[int, Answer]:
    """The answer to each wish. Raises RuntimeError where one fails: then there is nothing to compare with."""
    load = Load(wishes=wishes, urls=stack.urls)
    await load.run(num_open, lambda: len(load.answers) + load.num_open >= len(wishes))
    for answer in load.answers:
        if answer.error is not None:
            raise RuntimeError(f"without a fault: {answer.error}")
    return {answer.wish: answer for answer in load.answers}


def write_logs(stack: Stack, folder: Path) -> None:
    """What each process printed, a file for each, numbered in the order of their ends."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, process) in enumerate(stack.ended):
        (folder / f"{number:03}-{name}.log").write_text("".join(process.output))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
