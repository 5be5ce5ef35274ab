"""`augury bench engine`: decode speed of the engine beside transformers' `generate`, on one machine and in one run."""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from augury.errors import AuguryError
from augury.geometry import KvGroup
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams
from deploy.bench.options import positive
from worker_svc.engine import Description, Engine, EngineOptions
from worker_svc.model.description import read_architecture
from worker_svc.model.groups import make_layout
from worker_svc.model.named import ready_folder

BLOCK_SIZE = 16
MANY = 16
"""Streams of the batched figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Each stream decodes ``num_decoded`` tokens, greedily, after a prompt of ``num_prompt``."""

    num_prompt: int
    num_decoded: int

    def tables(self, stream: int, groups: Sequence[KvGroup]) -> tuple[tuple[int, ...], ...]:
        """A block table for each group, which no other stream's shares a block with."""
        lengths = [group.num_blocks(self.num_prompt + self.num_decoded) for group in groups]
        starts = accumulate(lengths, initial=1 + stream * sum(lengths))
        return tuple(tuple(range(start, start + length)) for start, length in zip(starts, lengths, strict=False))

    def num_blocks(self, num_streams: int, groups: Sequence[KvGroup]) -> int:
        """Blocks of all tables, and the null block."""
        return 1 + self.tables(num_streams - 1, groups)[-1][-1]

    def prompt(self, stream: int, vocab_size: int) -> tuple[int, ...]:
        """Token ids spread over the vocabulary, others for each stream."""
        return tuple((7919 * (stream * self.num_prompt + i) + 1000) % vocab_size for i in range(self.num_prompt))


def main(argv: Sequence[str]) -> int:
    """Prints the median rates and their ratios; 0, or 1 where something needed is missing."""
    options = _parser().parse_args(argv)
    load = Load(num_prompt=options.prompt, num_decoded=options.tokens)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        folder = ready_folder(options.model, os.environ, progress=True)
        rates = measure(_rivals(folder, options.dtype, load), options.repeats)
    except (ValueError, ModuleNotFoundError, AuguryError) as error:
        print(f"augury bench: {error}", file=sys.stderr)
        return 1
    print(f"{folder.name}, {options.dtype}, {torch.get_num_threads()} threads, {load.num_prompt} tokens in", end=", ")
    print(f"{load.num_decoded} decoded by each stream, median of {options.repeats}")
    print(table(rates))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="augury bench engine", description=__doc__)
    add = parser.add_argument
    add("--model", default="smollm2", help="folder, or a model known by name (default: %(default)s)")
    add("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="(default: %(default)s)")
    add("--prompt", type=positive, default=32, help="tokens of each prompt (default: %(default)s)")
    add("--tokens", type=positive, default=64, help="tokens each stream decodes (default: %(default)s)")
    add("--repeats", type=positive, default=3, help="runs of each, in turn (default: %(default)s)")
    add("--threads", type=positive, help="of the forward pass (default: torch's choice)")
    return parser


def _rivals(folder: Path, dtype: str, load: Load) -> dict[str, Callable[[], float]]:
    """What is compared, the yardstick first. Raises ValueError or ModuleNotFoundError where one cannot run."""
    model = _load_transformers(folder, dtype)
    num_blocks = load.num_blocks(MANY, make_layout(read_architecture(folder), 0, BLOCK_SIZE).groups)
    engine = Engine.load(folder, EngineOptions(dtype=dtype, block_size=BLOCK_SIZE, num_blocks=num_blocks, depth=0))
    epochs = count(1)
    return {
        "transformers generate, 1 stream": lambda: generate(model, load),
        "engine, 1 stream": lambda: decode(engine, next(epochs), load, num_streams=1),
        f"engine, {MANY} streams": lambda: decode(engine, next(epochs), load, num_streams=MANY),
    }


def measure(rivals: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median rate of each, after a run that does not count; they take turns, so that noise falls on all alike."""
    rates: dict[str, list[float]] = {name: [] for name in rivals}
    with tqdm(total=len(rivals) * (1 + repeats), desc="engine", unit="run") as bar:
        for _ in range(1 + repeats):
            for name, run in rivals.items():
                rates[name].append(run())
                bar.update()
    return {name: statistics.median(counted) for name, (_, *counted) in rates.items()}


def table(rates: Mapping[str, float]) -> str:
    """A line for each rate, in tokens/s, with its ratio to the first."""
    first = next(iter(rates.values()))
    return "\n".join(f"{name:32} {rate:8.1f} tok/s  {rate / first:6.2f} ×" for name, rate in rates.items())


# --- the engine ---


def decode(engine: Engine, epoch: int, load: Load, *, num_streams: int) -> float:
    """Decode rate of ``num_streams`` together, in tokens/s over all, prefill left out."""
    requests = [_request(handle, load, engine.description) for handle in range(num_streams)]
    prefill = tuple(Row(handle=request.handle, num_new=load.num_prompt) for request in requests)
    engine.execute(Step(epoch=epoch, seq=0, fresh=tuple(requests), rows=prefill))
    rows = tuple(Row(handle=request.handle, num_new=1) for request in requests)
    started = time.perf_counter()
    for seq in range(1, load.num_decoded + 1):
        outcome = engine.execute(Step(epoch=epoch, seq=seq, rows=rows))
        assert all(len(tokens) == 1 for tokens in outcome.emitted)
    return num_streams * load.num_decoded / (time.perf_counter() - started)


def _request(handle: int, load: Load, description: Description) -> NewRequest:
    return NewRequest(
        handle=handle,
        tokens=load.prompt(handle, description.vocab_size),
        num_prompt=load.num_prompt,
        num_computed=0,
        blocks=load.tables(handle, description.groups),
        hits=(),
        sampling=SamplingParams(temperature=0),
        stopping=StopParams(max_tokens=load.num_decoded + 1),
    )


# --- transformers ---


def _load_transformers(folder: Path, dtype: str) -> Any:
    try:
        from transformers import AutoModelForCausalLM
    except ModuleNotFoundError:
        raise ModuleNotFoundError("transformers is not installed; run: python3 deploy/bootstrap.py setup") from None
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model


class _Stopwatch:
    """A streamer, as `generate` takes one: notes when each token arrives. The prompt arrives first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def generate(model: Any, load: Load) -> float:
    """Decode rate of one stream, in tokens/s, prefill left out."""
    prompt, stopwatch = torch.tensor([load.prompt(0, model.config.vocab_size)]), _Stopwatch()
    mask = torch.ones_like(prompt)
    model.generate(
        prompt, attention_mask=mask, max_new_tokens=load.num_decoded + 1, do_sample=False, streamer=stopwatch
    )
    _, first, *_, last = stopwatch.times
    assert len(stopwatch.times) == load.num_decoded + 2
    return load.num_decoded / (last - first)
