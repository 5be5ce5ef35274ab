"""`augury bench spec`: speculation at each depth beside none, on text that is easy to predict and text that is not.

Every depth has its own engine in this process. They take turns, prompt by prompt, while the others stand still, so that
the machine's noise falls on all alike; ratios are taken within a round.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from augury import config
from augury.errors import AuguryError
from augury.types import Generation, SamplingParams, StopParams
from deploy.bench import rivals
from deploy.bench.options import positive, share
from deploy.bench.pools import blocks_per_stream
from deploy.bench.prompts import make_prompt
from deploy.bench.rivals import Answered, Rival, Work
from deploy.bench.sets import SETS, Tokens
from gateway.model import ServedModel
from worker_svc.model.description import read_architecture
from worker_svc.model.named import STORY, ready_folder

_DRAFT_SLOTS = 64
"""Slots of a stream beyond prompt and answer: more than the drafts of a step."""

_SHARED_ROOM = 4
"""How many times the blocks in use the pool holds where prefixes are kept."""

Results = dict[str, dict[str, list[Answered]]]
"""By the kind of load and by rival, what each round brought; the first rival is what the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is measured. A round is ``num_prompts`` prompts of each kind, others in each, ``concurrency`` at a time."""

    folder: Path
    model: ServedModel
    overrides: Sequence[str]
    rounds: int
    num_prompts: int
    num_tokens: int
    concurrency: int

    def wish(self, prompt: Tokens, temperature: float, seed: int) -> Generation:
        return Generation(
            request_id=f"bench-{seed}",
            prompt=prompt,
            sampling=SamplingParams(temperature=temperature, seed=seed),
            stopping=StopParams(max_tokens=self.num_tokens, stop_token_ids=self.model.eos_token_ids),
        )

    def settings(self, loads: Sequence["Load"], *more: str, room: int = 1) -> config.Settings:
        """Settings of one engine, with blocks for ``room`` times the streams at once. Raises ValueError."""
        wishes = (wish for load in loads for number in range(1 + self.rounds) for wish in load.wishes(number))
        longest = max(len(wish.prompt) for wish in wishes) + self.num_tokens
        given = config.load(env=os.environ, overrides=self.overrides)
        ahead = min(longest, given.scheduler.max_batched_tokens)
        each = blocks_per_stream(self.folder, given.kv.block_size, longest + _DRAFT_SLOTS, ahead + _DRAFT_SLOTS)
        num_blocks = 1 + room * self.concurrency * each
        fixed = [f"model.path={self.folder}", f"kv.num_blocks={num_blocks}", *more]
        return config.load(env=os.environ, overrides=[*fixed, *self.overrides])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``wishes`` gives what is asked in a round, a whole number of times the concurrency."""

    name: str
    wishes: Callable[[int], Sequence[Generation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One rival under one load: medians over rounds, and sums.

    ``speed`` is in decoded tokens/s or, for shared prefixes, in answers/s, ``cpu_ms`` the CPU time of one of them. The
    ratios are medians over rounds of how much faster, or cheaper, than the first rival it was. ``mean_drafts`` and
    ``mean_accepted`` are per step that verified drafts, ``accepted_at`` the share of those steps in which the draft at
    each position was accepted; None without any.
    """

    load: str
    rival: str
    speed: float
    ratio: float
    cpu_ms: float
    cpu_ratio: float
    hit_tokens: int
    num_drafts: int
    mean_drafts: float | None
    mean_accepted: float | None
    accepted_at: tuple[float, ...]


GENERAL = ["chat", "code", "sampled", "random"]
"""Sets for models that were made for chat."""


def main(argv: Sequence[str]) -> int:
    """Prints the table; 0, or 1 where the model or a setting does not permit it."""
    options = _parser().parse_args(argv)
    try:
        bench = _bench(options)
        figures = shared_prefix(bench, options) if options.shared_prefix else depths(bench, options)
    except (ValueError, OSError, AuguryError) as error:
        print(f"augury bench: {error}", file=sys.stderr)
        return 1
    print(f"{bench.folder.name}, median of {bench.rounds} rounds of {bench.num_prompts} prompts", end=", ")
    print(f"{bench.concurrency} at a time, answers of up to {bench.num_tokens} tokens")
    print(table(figures, "answer" if options.shared_prefix else "tok"))
    if options.json:
        given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        report = {"options": given, "figures": [asdict(each) for each in figures]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="augury bench spec", description=__doc__)
    add = parser.add_argument
    add("--model", default="smollm2", help="folder, or a model known by name (default: %(default)s)")
    add("--depths", type=lambda text: text.split(","), metavar="N,N,…", help="beside 0 (default: each, and auto)")
    add("--sets", type=_sets, help=f"of {','.join(SETS)} (default: {','.join(GENERAL)}; of the story model: story)")
    add("--prompts", type=positive, default=3, help="prompts of a set and round, at least (default: %(default)s)")
    add("--tokens", type=positive, default=64, help="longest answer, in tokens (default: %(default)s)")
    add("--rounds", type=positive, default=5, help="(default: %(default)s)")
    add("--concurrency", type=positive, default=1, help="streams at a time (default: %(default)s)")
    add("--shared-prefix", action="store_true", help="prefix caching on beside off instead, with and without drafts")
    add("--input", type=positive, default=256, help="tokens of a prompt with a shared prefix (default: %(default)s)")
    add("--shared", type=share, default=0.75, help="share of it that all have in common (default: %(default)s)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="overrides", help="one setting of all engines")
    add("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser


def _sets(text: str) -> list[str]:
    if unknown := set(text.split(",")) - SETS.keys():
        raise argparse.ArgumentTypeError(f"no such set: {', '.join(sorted(unknown))}")
    return text.split(",")


def _bench(options: argparse.Namespace) -> Bench:
    folder = ready_folder(options.model, os.environ, progress=True)
    return Bench(
        folder=folder,
        model=ServedModel.load(folder, folder.name),
        overrides=options.overrides,
        rounds=options.rounds,
        num_prompts=-(-options.prompts // options.concurrency) * options.concurrency,
        num_tokens=options.tokens,
        concurrency=options.concurrency,
    )


# --- the two measurements ---


def depths(bench: Bench, options: argparse.Namespace) -> list[Figures]:
    """Decode speed of every depth beside depth 0, on each set, without prefix caching."""
    wanted = options.depths or _all_depths(bench.folder)
    loads = [set_load(bench, name) for name in options.sets or ([STORY] if options.model == STORY else GENERAL)]
    settings = {
        f"depth {depth}": bench.settings(loads, f"speculation.depth={depth}", "kv.prefix_caching=false")
        for depth in dict.fromkeys(["0", *wanted])
    }
    return figures_of(measure(bench, settings, loads), lambda answered: answered.decoded)


def shared_prefix(bench: Bench, options: argparse.Namespace) -> list[Figures]:
    """Answers with prefix caching beside answers without, at depth 0 and auto. No two rounds share a prefix."""
    load = _prefix_load(bench, options.input, options.shared)
    figures = []
    for depth in ("0", "auto"):
        settings = {
            f"depth {depth}, caching {word}": bench.settings(
                [load], f"speculation.depth={depth}", f"kv.prefix_caching={value}", room=_SHARED_ROOM
            )
            for word, value in {"off": "false", "on": "true"}.items()
        }
        figures += figures_of(measure(bench, settings, [load]), lambda answered: answered.answers)
    return figures


def _all_depths(folder: Path) -> list[str]:
    mtp = read_architecture(folder).mtp
    return [*map(str, range(1, 1 + (mtp.num_modules if mtp else 0))), "auto"]


def set_load(bench: Bench, name: str) -> Load:
    """Prompts of the set of that name, other ones in every round."""

    def wishes(number: int) -> list[Generation]:
        indices = range(number * bench.num_prompts, (number + 1) * bench.num_prompts)
        return [bench.wish(SETS[name].make(bench.model, index), SETS[name].temperature, index) for index in indices]

    return Load(name=name, wishes=wishes)


def _prefix_load(bench: Bench, num_input: int, shared: float) -> Load:
    def wishes(number: int) -> list[Generation]:
        texts = [make_prompt(num_input, shared=shared, seed=number, index=i) for i in range(bench.num_prompts)]
        prompts = bench.model.encode(texts, add_special_tokens=False)
        return [bench.wish(prompt, 0.0, seed) for seed, prompt in enumerate(prompts)]

    return Load(name="shared prefix", wishes=wishes)


def measure(bench: Bench, settings: Mapping[str, config.Settings], loads: Sequence[Load]) -> Results:
    """Rounds of all loads on engines with all ``settings``, after a round of the first load that does not count."""
    with ExitStack() as stack:
        engines = {name: stack.enter_context(rivals.start(each)) for name, each in settings.items()}
        results: Results = {load.name: {name: [] for name in engines} for load in loads}
        one_round(engines, loads[0].wishes(0), bench.concurrency)
        for number in tqdm(range(1, 1 + bench.rounds), desc="spec", unit="round"):
            for load in loads:
                for name, answered in one_round(engines, load.wishes(number), bench.concurrency).items():
                    results[load.name][name].append(answered)
    return results


def one_round(engines: Mapping[str, Rival], wishes: Sequence[Generation], concurrency: int) -> dict[str, Answered]:
    """What each engine did for ``wishes``, ``concurrency`` at a time, the engines taking turns."""
    totals = dict.fromkeys(engines, Answered())
    for group in _groups(wishes, concurrency):
        for name, engine in engines.items():
            totals[name] += engine.answer(group)
    return totals


def _groups(wishes: Sequence[Generation], size: int) -> Iterator[Sequence[Generation]]:
    return (wishes[start : start + size] for start in range(0, len(wishes), size))


# --- figures ---


def figures_of(results: Results, work_of: Callable[[Answered], Work]) -> list[Figures]:
    """A line for each load and rival. Raises ValueError where a round brought nothing that can be measured."""
    return [
        _figures(load, rival, rounds, next(iter(by_rival.values())), work_of)
        for load, by_rival in results.items()
        for rival, rounds in by_rival.items()
    ]


def _figures(
    load: str,
    rival: str,
    rounds: Sequence[Answered],
    yardstick: Sequence[Answered],
    work_of: Callable[[Answered], Work],
) -> Figures:
    works, yards = [work_of(each) for each in rounds], [work_of(each) for each in yardstick]
    if not all(work.amount for work in (*works, *yards)):
        raise ValueError(f"{load}: every answer ended at its first token, so there is nothing to measure")
    total = sum(rounds, start=Answered())
    steps = total.num_drafts
    return Figures(
        load=load,
        rival=rival,
        speed=statistics.median(work.amount / work.wall_s for work in works),
        ratio=_median_ratio([work.amount / work.wall_s for work in works], [y.amount / y.wall_s for y in yards]),
        cpu_ms=statistics.median(work.cpu_s / work.amount * 1e3 for work in works),
        cpu_ratio=_median_ratio([work.amount / work.cpu_s for work in works], [y.amount / y.cpu_s for y in yards]),
        hit_tokens=total.hit_tokens,
        num_drafts=steps,
        mean_drafts=total.draft_tokens / steps if steps else None,
        mean_accepted=sum(total.accepted_at) / steps if steps else None,
        accepted_at=tuple(count / steps for count in total.accepted_at) if steps else (),
    )


def _median_ratio(values: Sequence[float], yardstick: Sequence[float]) -> float:
    return statistics.median(value / yard for value, yard in zip(values, yardstick, strict=True))


def table(figures: Sequence[Figures], unit: str) -> str:
    """The figures as text, a line for each."""
    speeds = [f"{unit}/s", "ratio", f"CPU ms/{unit}", "ratio"]
    header = ["load", "rival", *speeds, "hit tokens", "drafting steps", "drafts", "accepted", "at position 0, 1, …"]
    rows = [header, *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _row(figures: Figures) -> list[str]:
    return [
        figures.load,
        figures.rival,
        f"{figures.speed:.1f}",
        f"{figures.ratio:.3f}",
        f"{figures.cpu_ms:.2f}",
        f"{figures.cpu_ratio:.3f}",
        str(figures.hit_tokens),
        str(figures.num_drafts),
        _mean(figures.mean_drafts),
        _mean(figures.mean_accepted),
        " ".join(f"{share:.2f}" for share in figures.accepted_at) or "–",
    ]


def _mean(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
