"""The scheduler's benchmark: what it measures, and that budgets decide its exit status."""

import json
from pathlib import Path

import pytest

from deploy.bench import placing
from deploy.bench.app import main

SMALL = ["sched", "--requests", "4", "--prompt", "20", "--iterations", "3", "--runs", "1"]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("NUM_LANES", 3), ("NUM_REQUESTS", 8), ("NUM_ROUNDS", 5)):
        monkeypatch.setattr(placing, name, number)
    monkeypatch.setattr(placing, "BUDGET_MS", 1000.0)


def test_iterations_and_placing_are_measured_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert main([*SMALL, "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert all(value > 0 for value in (report["median"]["scheduler_ms"], *report["placing"].values()))
    shown = capsys.readouterr().out
    assert "a request of 1024 tokens among 3 lanes of 8" in shown
    assert f"by cost    {report['placing']['cost_ms']:6.3f}" in shown


def test_placing_over_its_budget_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "BUDGET_MS", 0.0)
    assert main(SMALL) == 1
