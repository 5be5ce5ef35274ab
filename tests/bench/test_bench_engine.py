"""The engine benchmark on a tiny random checkpoint."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from augury.geometry import KvGroup
from deploy.bench import engine as bench
from deploy.bench.app import main
from worker_svc.engine import Engine, EngineOptions

torch.set_num_threads(1)

LOAD = bench.Load(num_prompt=20, num_decoded=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        eos_token_id=list(range(128)),
    )
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_it_prints_each_rate_and_its_ratio_to_transformers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", str(folder), "--dtype", "float32", "--tokens", "4", "--prompt", "5", "--repeats", "1"]
    assert main(["engine", *options, "--threads", "1"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    found = [re.fullmatch(r"(.+?) +([\d.]+) tok/s +([\d.]+) ×", line) for line in lines]
    rates = [float(match[2]) for match in found if match]
    ratios = [float(match[3]) for match in found if match]
    assert len(rates) == 3 and ratios == pytest.approx([rate / rates[0] for rate in rates], abs=0.02, rel=0.02)
    assert [line.split("  ")[0].strip() for line in lines] == [
        "transformers generate, 1 stream",
        "engine, 1 stream",
        "engine, 16 streams",
    ]


def test_every_stream_decodes_its_share_in_blocks_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = (KvGroup(block_size=bench.BLOCK_SIZE),)
    options = EngineOptions(
        dtype="float32", block_size=bench.BLOCK_SIZE, num_blocks=LOAD.num_blocks(3, groups), max_len=64
    )
    engine, outcomes = Engine.load(folder, options), []
    execute = engine.execute
    monkeypatch.setattr(engine, "execute", lambda step: outcomes.append(execute(step)) or outcomes[-1])
    assert bench.decode(engine, 1, LOAD, num_streams=3) > 0
    assert [len(outcome.emitted) for outcome in outcomes] == [3] * (1 + LOAD.num_decoded)
    assert bench.decode(engine, 2, LOAD, num_streams=1) > 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 4))
def test_tables_cover_all_tokens_in_blocks_of_their_own_that_fill_the_pool(sizes: list[int], num_streams: int) -> None:
    groups = [KvGroup(block_size=size) for size in sizes]
    tables = [table for stream in range(num_streams) for table in LOAD.tables(stream, groups)]
    for group, table in zip(groups * num_streams, tables, strict=True):
        assert len(table) * group.block_size >= LOAD.num_prompt + LOAD.num_decoded
    blocks = [block for table in tables for block in table]
    assert sorted(blocks) == list(range(1, LOAD.num_blocks(num_streams, groups)))


def test_prompts_of_the_streams_differ_and_stay_in_the_vocabulary() -> None:
    prompts = [LOAD.prompt(stream, 128) for stream in range(16)]
    assert len(set(prompts)) == 16
    assert all(0 <= token < 128 for prompt in prompts for token in prompt)


def test_the_median_leaves_the_first_run_out() -> None:
    rates = iter([1000.0, 1.0, 5.0, 3.0])
    assert bench.measure({"one": lambda: next(rates)}, repeats=3) == {"one": 3.0}


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--model", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
