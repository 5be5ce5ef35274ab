"""Measured acceptance as a table for people and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from worker_svc.training.evaluate import Acceptance
from worker_svc.training.export import write_json


def table(measured: Mapping[str, Acceptance]) -> str:
    """One line for each entry: drafts accepted per step, share of steps that reach each depth, agreement per depth."""
    width = max(map(len, measured))
    head = f"{'':{width}}  accepted  {'steps reaching depth 1, 2, …':28}  {'agreement at depth 1, 2, …':28}  steps"
    lines = [
        f"{name:{width}}  {a.mean_accepted:8.2f}  {_shares(a.reached):28}  {_shares(a.agreement):28}  {a.num_steps:5}"
        for name, a in measured.items()
    ]
    return "\n".join([head, *lines])


def write(file: Path, measured: Mapping[str, Acceptance]) -> None:
    write_json(file, {name: {"mean_accepted": a.mean_accepted, **asdict(a)} for name, a in measured.items()})


def _shares(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.2f}" for value in values) or "–"
