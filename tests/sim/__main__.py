"""``python -m tests.sim``: many seeds, or ``--seed N`` to replay one, or ``--mutants`` to see planted bugs found."""

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from tests.sim.mutants import MAX_SEEDS, MUTANTS
from tests.sim.planting import planted
from tests.sim.seeds import BUGS, Failure, first_failure, run_seed, try_seeds

DEFAULT_SEEDS = range(1000)
PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if nothing is wrong."""
    options = _parse(arguments)
    if options.mutants:
        return show_mutants()
    if options.seed is not None:
        return replay(options.seed)
    return run(options.seeds)


def run(seeds: range) -> int:
    """Run ``seeds`` on every core, up to the first failure."""
    began, shown, tally = time.monotonic(), time.monotonic(), Counter[str]()
    for seed, outcome in zip(seeds, try_seeds(seeds), strict=True):
        if isinstance(outcome, Failure):
            print(f"seed {seed} FAILED: {outcome.error}\nreplay it: python -m tests.sim --seed {seed}")
            return 1
        tally += outcome.tally
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"{seed - seeds.start + 1} of {len(seeds)} seeds, {tally['iterations']} iterations", flush=True)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.items()))
    print(f"{len(seeds)} seeds hold in {time.monotonic() - began:.1f} s: {counts}")
    return 0


def replay(seed: int) -> int:
    """One seed with everything that happens in it."""
    try:
        result = run_seed(seed, print)
    except BUGS:
        traceback.print_exc(file=sys.stdout)
        print(f"seed {seed} FAILED; replay it: python -m tests.sim --seed {seed}")
        return 1
    print(f"seed {seed} holds: {dict(result.tally)}")
    return 0


def show_mutants() -> int:
    """Plant each bug and show by what it is found."""
    survivors = 0
    for name, edits in MUTANTS.items():
        with planted(edits):
            failure = first_failure(range(MAX_SEEDS))
        survivors += failure is None
        print(f"{name}: {f'seed {failure.seed}: {failure.error}' if failure else 'SURVIVES'}", flush=True)
    print(f"{len(MUTANTS)} mutants, {survivors} survive")
    return 1 if survivors else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    seed = os.environ.get("SEED")
    parser.add_argument("--seed", type=int, default=int(seed) if seed else None, help="replay one (also: SEED=N)")
    parser.add_argument("--seeds", type=_range, default=DEFAULT_SEEDS, metavar="A:B", help="run A … B - 1")
    parser.add_argument("--mutants", action="store_true", help="plant bugs, one after another, and find them")
    return parser.parse_args(arguments)


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last))


if __name__ == "__main__":
    sys.exit(main())
