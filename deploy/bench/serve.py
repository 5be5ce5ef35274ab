"""`augury bench serve`: load on any OpenAI-compatible server, level after level, as a table and JSON."""

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import httpx
from tqdm import tqdm

from deploy.bench.client import Ask, Server, closed_loop, first_model, probe
from deploy.bench.cpu import cpu_seconds
from deploy.bench.options import levels, positive, share
from deploy.bench.prompts import make_prompt
from deploy.bench.stats import Level, Percentiles, Summary, summarise


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark; 0 where every request was answered, 1 where one was not, 2 for wrong options."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        ask, summaries = asyncio.run(measure(options))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        print(f"augury bench: {options.url}: {type(error).__name__} {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"augury bench: {error}", file=sys.stderr)
        return 1
    print(table(summaries))
    if options.json:
        load = {name: value for name, value in vars(options).items() if name not in ("api_key", "json", "model")}
        report = {"load": load, "ask": asdict(ask), "levels": [asdict(summary) for summary in summaries]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if any(summary.errors for summary in summaries) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="augury bench serve", description=__doc__)
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
    add("--api", choices=["chat", "completions"], default="chat", help="which endpoint to ask (default: %(default)s)")
    add("--model", help="default: the first one the server lists")
    add("--api-key", default=os.environ.get("OPENAI_API_KEY"), help="default: $OPENAI_API_KEY")
    add("--concurrency", type=levels, default=[1, 8, 32], metavar="N,N,…", help="levels to run (default: 1,8,32)")
    add("--requests", type=positive, help="requests of each level (default: 4 for each concurrent one)")
    add("--input", type=positive, default=256, help="words of a prompt, about a token each (default: %(default)s)")
    add("--output", type=positive, default=128, help="tokens of an answer (default: %(default)s)")
    add("--shared", type=share, default=0.0, help="share of a prompt that all have in common, 0 to 1 (default: 0)")
    add("--seed", type=int, default=0, help="of the prompts; a server may have those of an earlier run cached")
    add("--server-pid", type=positive, action="append", default=[], help="count this process's CPU time (repeatable)")
    add("--timeout", type=float, default=300.0, help="seconds without a byte that fail a request (default: 300)")
    add("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser


async def measure(options: argparse.Namespace) -> tuple[Ask, list[Summary]]:
    """Every level in turn, and what was asked in the end.

    Raises ValueError or httpx.HTTPError where the server cannot be used at all.
    """
    base_url = options.url.rstrip("/").removesuffix("/v1")
    server = Server(base_url=base_url, api_key=options.api_key, timeout_s=options.timeout)
    model = options.model or await first_model(server)
    ask = await probe(server, Ask(api=options.api, model=model, num_output=options.output))
    prompts = (
        make_prompt(options.input, shared=options.shared, seed=options.seed, index=index) for index in itertools.count()
    )
    summaries = []
    for concurrency in options.concurrency:
        level = list(itertools.islice(prompts, options.requests or 4 * concurrency))
        summaries.append(await run_level(server, ask, level, concurrency=concurrency, pids=options.server_pid))
    return ask, summaries


async def run_level(
    server: Server, ask: Ask, prompts: Sequence[str], *, concurrency: int, pids: Sequence[int]
) -> Summary:
    """One level, with a progress bar on stderr. Raises ValueError where one of ``pids`` does not run."""
    cpu_before, started = cpu_seconds(pids), time.perf_counter()
    with tqdm(total=len(prompts), desc=f"{concurrency} streams", unit="request") as bar:
        results = await closed_loop(server, ask, prompts, concurrency=concurrency, on_done=bar.update)
    wall_s, cpu_s = time.perf_counter() - started, cpu_seconds(pids) - cpu_before
    return summarise(Level(concurrency=concurrency, wall_s=wall_s, cpu_s=cpu_s if pids else None), results)


def table(summaries: Sequence[Summary]) -> str:
    """The summaries as text, a line for each."""
    header = ["streams", "requests", "failed", "tok/s", "TTFT ms 50/95/99", "TPOT ms 50/95/99", "CPU ms/tok"]
    rows = [header, *map(_row, summaries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    reasons = [f"{s.concurrency} streams: {count} × {why}" for s in summaries for why, count in s.errors.items()]
    return "\n".join(lines + reasons)


def _row(summary: Summary) -> list[str]:
    cpu = summary.cpu_ms_per_output_token
    return [
        str(summary.concurrency),
        str(summary.num_requests),
        str(sum(summary.errors.values())),
        f"{summary.output_tokens_per_s:.1f}",
        _percentiles(summary.ttft_ms),
        _percentiles(summary.tpot_ms),
        "–" if cpu is None else f"{cpu:.2f}",
    ]


def _percentiles(values: Percentiles | None) -> str:
    return "–" if values is None else f"{values.p50:.1f} / {values.p95:.1f} / {values.p99:.1f}"
