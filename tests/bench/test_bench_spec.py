"""The speculation benchmark: its figures, its sets, and a run of it on a tiny random checkpoint."""

import json
from pathlib import Path
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from augury import config
from augury.types import Generation, SamplingParams, StopParams
from deploy.bench import rivals, spec
from deploy.bench.app import main
from deploy.bench.rivals import Answered, Work
from deploy.bench.sets import SETS
from gateway.model import ServedModel
from tests.gateway.tiny import write_model
from tests.worker.tiny import save_llama

torch.set_num_threads(1)

counts = st.integers(0, 1000)
seconds = st.floats(0.1, 100)
works = st.builds(Work, amount=st.integers(1, 1000), wall_s=seconds, cpu_s=seconds)
answers = st.builds(
    Answered,
    decoded=works,
    answers=works,
    hit_tokens=counts,
    num_drafts=counts,
    draft_tokens=counts,
    accepted_at=st.lists(counts, max_size=4).map(tuple),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_model(tmp_path_factory.mktemp("models"))
    save_llama(path, vocab_size=401, max_position_embeddings=1024, eos_token_id=2)
    return path


@given(answers, answers)
def test_answers_add_up_position_by_position(one: Answered, other: Answered) -> None:
    total = one + other
    assert total.decoded.amount == one.decoded.amount + other.decoded.amount
    assert len(total.accepted_at) == max(len(one.accepted_at), len(other.accepted_at))
    assert sum(total.accepted_at) == sum(one.accepted_at) + sum(other.accepted_at)
    assert total.accepted_at[:1] == (
        (sum((*one.accepted_at[:1], *other.accepted_at[:1])),) if total.accepted_at else ()
    )


@given(st.lists(st.tuples(answers, answers), min_size=1, max_size=5))
def test_ratios_are_taken_within_a_round(rounds: list[tuple[Answered, Answered]]) -> None:
    results = {"chat": {"depth 0": [a for a, _ in rounds], "depth 2": [b for _, b in rounds]}}
    first, second = spec.figures_of(results, lambda answered: answered.decoded)
    assert (first.load, first.rival, second.rival) == ("chat", "depth 0", "depth 2")
    assert first.ratio == first.cpu_ratio == 1.0
    pairs = [(a.decoded, b.decoded) for a, b in rounds]
    assert second.speed == median(b.amount / b.wall_s for _, b in pairs)
    assert second.ratio == pytest.approx(median(b.amount / b.wall_s * a.wall_s / a.amount for a, b in pairs))
    assert second.cpu_ms == pytest.approx(1000 * median(b.cpu_s / b.amount for _, b in pairs))
    assert second.cpu_ratio == pytest.approx(median(b.amount / b.cpu_s * a.cpu_s / a.amount for a, b in pairs))


def test_answers_of_one_token_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="chat"):
        spec.figures_of({"chat": {"depth 0": [Answered()]}}, lambda answered: answered.decoded)


@given(st.lists(answers, min_size=1, max_size=3))
def test_acceptance_is_by_step_that_verified_drafts(rounds: list[Answered]) -> None:
    (figures,) = spec.figures_of({"code": {"auto": rounds}}, lambda answered: answered.answers)
    steps = sum(each.num_drafts for each in rounds)
    if not steps:
        assert (figures.mean_drafts, figures.mean_accepted, figures.accepted_at) == (None, None, ())
        return
    assert figures.mean_drafts == sum(each.draft_tokens for each in rounds) / steps
    assert figures.mean_accepted == pytest.approx(sum(figures.accepted_at))


def test_sets_give_each_index_a_prompt_of_its_own_and_the_same_again(folder: Path) -> None:
    model = ServedModel.load(folder, "tiny")
    for each in SETS.values():
        prompts = [each.make(model, index) for index in range(8)]
        assert len(set(prompts)) == 8
        assert prompts == [each.make(model, index) for index in range(8)]
    assert model.tokenizer.decode(SETS["chat"].make(model, 0), skip_special_tokens=False).endswith("assistant\n")


def test_every_round_asks_something_else(folder: Path) -> None:
    model = ServedModel.load(folder, "tiny")
    bench = spec.Bench(folder=folder, model=model, overrides=(), rounds=2, num_prompts=3, num_tokens=8, concurrency=1)
    load = spec.set_load(bench, "chat")
    asked = [wish.prompt for number in range(3) for wish in load.wishes(number)]
    assert len(set(asked)) == 9 and asked[:3] == [wish.prompt for wish in load.wishes(0)]
    settings = bench.settings([load])
    assert settings.kv.num_blocks is not None
    assert settings.kv.num_blocks * settings.kv.block_size > max(map(len, asked)) + bench.num_tokens


def test_engines_stand_side_by_side_and_count_what_they_decode(folder: Path) -> None:
    overrides = [f"model.path={folder}", "kv.num_blocks=40", "model.dtype=float32", "worker.threads=1"]
    wishes = [
        Generation(
            request_id=str(seed),
            prompt=tuple(range(5, 40)),
            sampling=SamplingParams(temperature=0),
            stopping=StopParams(max_tokens=6),
        )
        for seed in range(3)
    ]
    with (
        rivals.start(config.load(overrides=overrides)) as caching,
        rivals.start(config.load(overrides=[*overrides, "kv.prefix_caching=false"])) as plain,
    ):
        engines = {"caching": caching, "plain": plain}
        spec.one_round(engines, wishes, 1)
        alone, together = spec.one_round(engines, wishes, 1), spec.one_round(engines, wishes, 3)
    assert [each.hit_tokens for each in alone.values()] == [3 * 32, 0]
    for each in alone.values():
        assert (each.answers.amount, each.decoded.amount) == (3, 15)
        assert 0 < each.decoded.wall_s < each.answers.wall_s
    for each in together.values():
        assert each.answers.amount == 3
        assert 0 < each.decoded.amount <= 15


def test_a_run_prints_every_depth_of_every_set(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "figures.json"
    options = ["--model", str(folder), "--prompts", "1", "--tokens", "5", "--rounds", "1", "--json", str(report)]
    settings = ["--set", "worker.threads=1", "--set", "model.dtype=float32"]
    assert main(["spec", *options, "--sets", "code,sampled", "--concurrency", "2", *settings]) == 0
    found = json.loads(report.read_text())["figures"]
    assert [(each["load"], each["rival"]) for each in found] == [
        (load, rival) for load in ("code", "sampled") for rival in ("depth 0", "depth auto")
    ]
    assert all(each["speed"] > 0 and each["num_drafts"] == 0 and each["hit_tokens"] == 0 for each in found)
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[each["load"], "depth"] for each in found]


def test_shared_prefixes_hit_only_where_caching_is_on(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "figures.json"
    options = ["--model", str(folder), "--prompts", "3", "--tokens", "3", "--rounds", "2", "--json", str(report)]
    assert main(["spec", "--shared-prefix", "--input", "50", *options, "--set", "worker.threads=1"]) == 0
    found = {each["rival"]: each["hit_tokens"] for each in json.loads(report.read_text())["figures"]}
    assert list(found) == [f"depth {depth}, caching {word}" for depth in ("0", "auto") for word in ("off", "on")]
    assert [hits > 0 for hits in found.values()] == [False, True] * 2


@pytest.mark.parametrize("options", [["--model", "no such model"], ["--depths", "x"], ["--set", "kv.blocks=1"]])
def test_what_does_not_permit_a_run_is_told(
    folder: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spec", "--model", str(folder), *options]) == 1
    assert capsys.readouterr().err.startswith("augury bench: ")
