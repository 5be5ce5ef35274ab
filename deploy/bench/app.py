"""`augury bench`: which benchmark to run."""

import importlib
import sys
from collections.abc import Sequence

BENCHMARKS = {
    "serve": "load on any OpenAI-compatible server",
    "engine": "decode speed of the engine beside transformers",
    "sched": "CPU time of scheduler and KV cores per iteration",
    "kv": "lookups, commits and memory of the KV core beside the reference engine's",
    "spec": "speculation at each depth beside none",
}
"""Each is the module of that name beside this one, loaded when it is asked for: not all need torch, or httpx."""

USAGE = "usage: augury bench NAME [options]; --help after a name shows its options\n" + "\n".join(
    f"  {name:8}{meaning}" for name, meaning in BENCHMARKS.items()
)


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark named first in ``argv`` with the options after it; returns its exit code."""
    match argv:
        case ["-h" | "--help"]:
            print(USAGE)
            return 0
        case [name, *options] if name in BENCHMARKS:
            code: int = importlib.import_module(f"deploy.bench.{name}").main(options)
            return code
        case _:
            print(USAGE, file=sys.stderr)
            return 2
