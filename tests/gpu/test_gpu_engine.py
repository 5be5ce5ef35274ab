"""An engine on a GPU says what it says on the processor, with speculation and without."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from augury.types import SamplingParams
from tests.worker.cases import FAMILIES, GREEDY, WHOLE
from tests.worker.driver import Driver
from tests.worker.test_device import EVERYTHING, SAMPLED, options, texts
from worker_svc.device import CPU, pick_device
from worker_svc.engine import Engine, EngineOptions
from worker_svc.model.named import STORY, ready_folder

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

OPENING = "You are a patient teacher. Answer in plain words, and give an example wherever one helps. "
QUESTIONS = [
    "Why is the sky blue?",
    "How does a bicycle stay upright?",
    "What is the capital of France, and what is it known for?",
    "Write a function that reverses a list.",
    "Tell a story of a fox and a crow.",
    "How many legs do three spiders have?",
]
SHORT_STORIES = ["Once upon a time, there was a little girl named Lily.", "One day, a cat saw a big red ball."]


def prompts(folder: Path, wanted: Sequence[str]) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tuple(tokenizer.encode(text).ids) for text in wanted]


def crowd(engine: Engine, asked: Sequence[tuple[int, ...]], sampling: SamplingParams = GREEDY) -> list[list[int]]:
    """Texts of requests together, in chunks; the second half begins when the first has left its prefix."""
    driver, half = Driver(engine, 1), len(asked) // 2
    for prompt in asked[:half]:
        driver.add(prompt, 48, sampling)
    for chunk in (7, 16, WHOLE, WHOLE):
        driver.step(dict.fromkeys(range(half), chunk))
    for prompt in asked[half:]:
        driver.add(prompt, 48, sampling)
    return driver.finish()


def load(folder: Path, device: torch.device, dtype: str = "float32", depth: int | None = 0) -> Engine:
    return Engine.load(folder, EngineOptions(dtype=dtype, num_blocks=600, device=device, depth=depth))


def test_smollm2_says_the_same_as_on_the_processor() -> None:
    folder = ready_folder("smollm2", os.environ, progress=False)
    asked = prompts(folder, [OPENING + question for question in QUESTIONS])
    assert crowd(load(folder, pick_device("cuda")), asked) == crowd(load(folder, CPU), asked)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_speculation_leaves_every_text_as_it_is(sampling: SamplingParams) -> None:
    folder = ready_folder(STORY, os.environ, progress=False)
    asked = prompts(folder, SHORT_STORIES * 2)
    expected = crowd(load(folder, pick_device("cuda"), depth=0), asked, sampling)
    for depth in (1, 4, None):
        assert crowd(load(folder, pick_device("cuda"), depth=depth), asked, sampling) == expected


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_modules_of_every_family_say_the_same_as_on_the_processor(family: str, depth: int, tmp_path: Path) -> None:
    FAMILIES[family](tmp_path)
    samplings = [GREEDY, SAMPLED, EVERYTHING]
    there, here = (Engine.load(tmp_path, options(device, depth)) for device in (pick_device("cuda"), CPU))
    assert texts(there, samplings) == texts(here, samplings)


def test_smollm2_knows_its_capitals_with_flashinfer() -> None:
    folder = ready_folder("smollm2", os.environ, progress=False)
    engine = load(folder, pick_device("cuda"), "bfloat16")
    asked = prompts(folder, [f"The capital of {land} is the city of" for land in ("France", "Italy", "Japan")])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    said = [tokenizer.decode(text) for text in crowd(engine, asked)]
    assert all(city in text for city, text in zip(("Paris", "Rome", "Tokyo"), said, strict=True)), said


def test_kv_fills_the_gpu_but_for_a_reserve() -> None:
    folder, device = ready_folder("smollm2", os.environ, progress=False), pick_device("cuda")
    free = torch.cuda.mem_get_info(device)[0]
    engine = Engine.load(folder, EngineOptions(device=device))
    size = engine.num_blocks * engine.description.bytes_per_block
    assert free // 2 < size < free - (1 << 30)
