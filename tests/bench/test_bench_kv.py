"""The KV benchmark: what it has our core do, and what it makes of the figures."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from augury.types import Granted, Proposal
from deploy.bench import kv
from deploy.bench.app import main
from deploy.bench.kv_ours import Ours, Request
from deploy.bench.kv_work import BLOCK_SIZE, Clock, Figures, GroupsFigures, Load, PoolFigures, iterations_s, long_prompt
from kvcache_svc.core.coordinator import Coordinator

SMALL = ["--prompt", "400", "--runs", "2", "--blocks", "100", "--requests", "4", "--iterations", "3"]
LOAD = Load(prompt=400, runs=2, blocks=100, requests=8, iterations=64)
LAYOUTS = [(None,), (None, LOAD.window)]


class Watched(Ours):
    """Keeps what the pool is asked."""

    def __init__(self, windows: Sequence[int | None], num_blocks: int, clock: Clock) -> None:
        super().__init__(windows, num_blocks, clock)
        self.proposals: list[Proposal] = []

    def _carry_out(self, proposal: Proposal) -> tuple[Granted | None, ...]:
        self.proposals.append(proposal)
        return super()._carry_out(proposal)

    @property
    def coordinator(self) -> Coordinator:
        return self._kv


def decoded(windows: tuple[int | None, ...]) -> Watched:
    made: list[Watched] = []

    def make(windows: Sequence[int | None], num_blocks: int, clock: Clock) -> Watched:
        made.append(Watched(windows, num_blocks, clock))
        return made[-1]

    assert len(list(iterations_s(make, LOAD, windows))) == LOAD.iterations
    return made[0]


def figures(us: float, gap_us: float | None = None, iteration_ms: float = 0.1) -> Figures:
    groups = GroupsFigures(
        keys_us=us,
        hit_us=us,
        gap_us=gap_us,
        admission_us=us,
        release_us=us,
        miss_us=us,
        iteration_ms=iteration_ms,
    )
    return Figures(
        manager="m", full=groups, hybrid=groups, pool=PoolFigures(fill_us=us, hit_us=us, memory_bytes=100 * us)
    )


@pytest.mark.parametrize("windows", LAYOUTS)
def test_every_iteration_asks_what_steady_decoding_asks(windows: tuple[int | None, ...]) -> None:
    """Requests in number and blocks in use stay the same; each iteration seals, and what ends is replaced."""
    watched = decoded(windows)
    coordinator = watched.coordinator
    coordinator.check()
    assert len(coordinator.leases.tables) == LOAD.requests
    steady = watched.proposals[LOAD.output :]
    assert all(
        len(proposal.releases) == sum(bool(reserve.keys) for reserve in proposal.reserves) for proposal in steady
    )
    assert sum(len(proposal.releases) for proposal in steady) == LOAD.requests * LOAD.iterations // LOAD.output
    growths = sum(not reserve.keys for proposal in steady for reserve in proposal.reserves)
    assert growths == pytest.approx(LOAD.requests * LOAD.iterations / BLOCK_SIZE, rel=0.1)
    assert {seal.group for proposal in steady for seal in proposal.seals} == set(range(len(windows)))


@pytest.mark.parametrize("windows", LAYOUTS)
def test_requests_find_the_half_of_the_prompt_that_they_share(windows: tuple[int | None, ...]) -> None:
    lookups = decoded(windows).coordinator.inspect().lookups
    # The first ones are admitted together, before anything is sealed.
    assert lookups.hit_tokens == LOAD.before // 2 * (lookups.num_lookups - LOAD.requests)


def test_what_the_caller_prepares_is_not_counted() -> None:
    clock = Clock()
    cache = Ours((None,), 100, clock)
    request: list[Request] = []
    tokens = long_prompt(0, 400)
    assert clock.spent_s(lambda: request.append(cache.named(tokens, 400))) > 0
    assert clock.spent_s(lambda: request[0].lookup) == 0


def test_prompts_share_no_block() -> None:
    assert len({tuple(long_prompt(index, 64)[:BLOCK_SIZE]) for index in range(500)}) == 500


def test_figures_stand_beside_the_reference_with_their_ratio() -> None:
    every = kv.rows(figures(0.5), figures(2.0, iteration_ms=0.4))
    assert all(row.theirs == pytest.approx(4 * row.ours) for row in every)
    lines = kv.table(LOAD, every, "m").splitlines()[-len(every) :]
    assert all(line.endswith(" 4.00×") for line in lines)


@pytest.mark.parametrize("found", [figures(1.1), figures(0.5, gap_us=1.1), figures(0.5, iteration_ms=0.5)])
def test_a_figure_above_its_goal_is_marked(found: Figures) -> None:
    every = kv.rows(found, None)
    assert {row.goal for row in every if not row.is_met} < {kv.LOOKUP_US, kv.ITERATION_MS}
    marked = [line for line in kv.table(LOAD, every, None).splitlines() if line.endswith("missed")]
    assert len(marked) == sum(not row.is_met for row in every) > 0


def test_the_command_runs_without_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, nowhere = tmp_path / "kv.json", tmp_path / "python"
    status = main(["kv", *SMALL, "--reference", str(nowhere), "--json", str(file)])
    printed = capsys.readouterr().out
    assert kv.HINT in printed
    assert status == (1 if "missed" in printed else 0)
    every = json.loads(file.read_text())["rows"]
    assert len(every) == 16
    assert all(row["ours"] > 0 and row["theirs"] is None for row in every if "bytes" not in row["name"])


def test_a_reference_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", *SMALL, "--reference", sys.executable]) == 1
    assert re.search(r"augury bench: .*kv_reference", capfd.readouterr().err)


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["kv", "--runs", "0"])
    assert refusal.value.code == 2
