"""Every benchmark that makes a pool of its own, on the story model: several KV groups, windows and MTP modules."""

import json
from pathlib import Path

import pytest
import torch

from deploy.bench.app import main
from deploy.bench.pools import blocks_per_stream
from scheduler_svc.core.lane import LaneConfig
from worker_svc.engine import Engine, EngineOptions
from worker_svc.model.named import DEMO, STORY

torch.set_num_threads(1)

SPEC = ["spec", "--model", STORY, "--prompts", "1", "--rounds", "1"]


def test_it_tells_stories_as_long_as_they_are_by_default(tmp_path: Path) -> None:
    report = tmp_path / "figures.json"
    assert main([*SPEC, "--depths", "auto,1", "--concurrency", "3", "--json", str(report)]) == 0
    found = json.loads(report.read_text())["figures"]
    assert [(each["load"], each["rival"]) for each in found] == [
        ("story", f"depth {depth}") for depth in ("0", "auto", "1")
    ]


@pytest.mark.parametrize(
    "options",
    [
        [*SPEC, "--shared-prefix", "--input", "40", "--concurrency", "2"],
        [*SPEC, "--depths", "2", "--tokens", "100", "--set", "kv.block_size=4", "--set", "kv.hybrid=off"],
        ["engine", "--model", STORY, "--tokens", "40", "--repeats", "1", "--threads", "1"],
    ],
)
def test_each_has_blocks_enough(options: list[str]) -> None:
    assert main(options) == 0


@pytest.mark.parametrize("depth", [None, 0, 1, 4])
@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_a_stream_of_any_depth_is_admitted_beside_the_others(depth: int | None, block_size: int) -> None:
    engine = Engine.load(DEMO / STORY, EngineOptions(block_size=block_size, num_blocks=2, depth=depth))
    about = engine.description
    lane = LaneConfig(
        pool="w",
        fingerprint=about.fingerprint,
        num_blocks=1000,
        groups=about.groups,
        max_model_len=about.max_model_len,
        max_batched_tokens=64,
        max_running=4,
        num_prefill_lookahead=about.num_prefill_lookahead,
        max_drafts=about.max_drafts,
    )
    for num_tokens in (10, 100, 400):
        drafts = about.max_drafts
        each = blocks_per_stream(DEMO / STORY, block_size, num_tokens + drafts, min(num_tokens, 64) + drafts)
        assert lane.peak(num_tokens) < each
