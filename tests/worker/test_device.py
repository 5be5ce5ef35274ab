"""A worker keeps to its device: nothing of a step lies elsewhere, the host waits seldom, and texts stay the same."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from augury.types import Outcome, SamplingParams, Step
from tests.worker.cases import FAMILIES, GREEDY, PREFIX, WHOLE
from tests.worker.driver import Driver
from tests.worker.pretend import FAR, MeetingError, Pretended
from tests.worker.tiny import BLOCK_SIZE
from worker_svc import device
from worker_svc.attention import choose_attention
from worker_svc.engine import Engine, EngineOptions

torch.set_num_threads(1)

SAMPLED = SamplingParams(temperature=0.8, seed=3)
EVERYTHING = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.2,
    presence_penalty=0.1,
    logit_bias={3: 1.0},
    seed=4,
)


@pytest.fixture
def pretended() -> Iterator[Pretended]:
    with Pretended() as mode:
        yield mode


def options(where: torch.device, depth: int, attention: str = "cpu") -> EngineOptions:
    return EngineOptions(
        dtype="float32", block_size=BLOCK_SIZE, num_blocks=300, attention=attention, depth=depth, device=where
    )


def texts(engine: Engine, samplings: Sequence[SamplingParams]) -> list[list[int]]:
    """Of a crowd in chunks, one of which is preempted and starts anew from what is cached."""
    driver = Driver(engine, 1)
    for index, sampling in enumerate(samplings):
        driver.add(PREFIX[: 20 + 3 * index], 10, sampling)
    for chunk in (9, WHOLE, WHOLE):
        driver.step(dict.fromkeys(range(len(samplings)), chunk))
    driver.preempt(0)
    found = driver.finish()
    assert driver.num_hit_blocks > 0
    return found


@pytest.mark.parametrize(
    ("family", "depth", "attention"),
    [("chained", 0, "cpu"), ("chained, windows", 3, "reference"), *((family, 3, "cpu") for family in FAMILIES)],
)
def test_a_step_makes_every_tensor_on_its_device(family: str, depth: int, attention: str, tmp_path: Path) -> None:
    FAMILIES[family](tmp_path)
    samplings = [GREEDY, SAMPLED, EVERYTHING]
    expected = texts(Engine.load(tmp_path, options(device.CPU, depth, attention)), samplings)
    with Pretended():
        assert texts(Engine.load(tmp_path, options(FAR, depth, attention)), samplings) == expected


@pytest.mark.parametrize(("sampling", "depth"), [(GREEDY, 0), (GREEDY, 3), (SAMPLED, 3)])
@pytest.mark.parametrize("family", ["chained, accepted", "self, accepted"])
def test_the_host_waits_for_draws_and_drafts_alone(
    family: str,
    depth: int,
    sampling: SamplingParams,
    tmp_path: Path,
    pretended: Pretended,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for all highest logits, once for all drafts, and for each token that is sampled."""
    FAMILIES[family](tmp_path)
    engine = Engine.load(tmp_path, options(FAR, depth))
    execute, waits = engine.execute, list[tuple[int, Outcome]]()

    def counted(step: Step) -> Outcome:
        before = pretended.num_reads
        outcome = execute(step)
        waits.append((pretended.num_reads - before, outcome))
        return outcome

    monkeypatch.setattr(engine, "execute", counted)
    texts(engine, [sampling] * 3)
    assert len(waits) >= 5
    for num_waits, outcome in waits:
        num_sampled = sum(map(len, outcome.emitted)) if sampling is SAMPLED else 0
        assert num_waits <= 1 + num_sampled + any(outcome.num_drafts)


def test_the_pretended_device_notices_a_tensor_of_the_host(pretended: Pretended) -> None:
    there = device.upload([1, 2, 3], FAR)
    with pytest.raises(MeetingError):
        there + torch.arange(3)
    with pytest.raises(MeetingError):
        there[torch.tensor([0])]
    before = pretended.num_reads
    assert there.tolist() == [1, 2, 3] and int(there.sum()) == 6
    assert len(there[there > 1]) == 2
    assert pretended.num_reads == before + 3


def test_devices_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    names = {"auto": "cuda:0", "cuda": "cuda:0", "cuda:1": "cuda:1", "cpu": "cpu"}
    assert {name: str(device.pick_device(name)) for name in names} == names
    with pytest.raises(ValueError, match="cuda:2"):
        device.pick_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.pick_device("auto") == device.CPU


def test_kv_leaves_room_on_a_gpu_and_takes_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (80 * gib, 96 * gib))
    cuda = torch.device("cuda", 0)
    assert device.kv_bytes(cuda, None) == 71 * gib
    assert device.kv_bytes(cuda, 512) == device.kv_bytes(device.CPU, 512) == gib // 2
    assert device.kv_bytes(device.CPU, None) == 2 * gib
    assert device.free_share(gib // 2) == 0


def test_attention_is_chosen_by_what_runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert choose_attention("auto", cuda, torch.bfloat16, 64) == "cpu"
    assert "not installed" in caplog.text
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert choose_attention("auto", cuda, torch.bfloat16, 64) == "flashinfer"
    assert choose_attention("reference", cuda, torch.bfloat16, 64) == "reference"
    for where, dtype, head_dim in ((device.CPU, torch.bfloat16, 64), (cuda, torch.float32, 64), (cuda, torch.half, 8)):
        assert choose_attention("auto", where, dtype, head_dim) == "cpu"
        with pytest.raises(ValueError, match="flashinfer"):
            choose_attention("flashinfer", where, dtype, head_dim)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "T4")
    assert choose_attention("auto", cuda, torch.half, 64) == "cpu"
    assert "T4" in caplog.text
