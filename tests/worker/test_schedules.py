"""A request's text is its own: batch mates, chunks, prefix hits and preemptions leave it as it is."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.types import SamplingParams
from tests.worker.driver import Driver, text_alone
from tests.worker.tiny import BLOCK_SIZE, VOCAB_SIZE, save_llama
from worker_svc.engine import Engine, EngineOptions

torch.set_num_threads(1)

CHUNKS = (1, 5, 16, 1 << 20)
PREFIX = tuple(range(3, 25))

prompts = st.builds(
    lambda shared, own: (*PREFIX[:shared], *own),
    st.integers(0, len(PREFIX)),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24),
)
samplings = st.sampled_from(
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1, seed=5),
        SamplingParams(temperature=1.3, top_k=20, top_p=0.9, seed=2**64 - 1),
        SamplingParams(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, seed=11),
    ]
)
requests = st.lists(st.tuples(prompts, st.integers(1, 10), samplings), min_size=1, max_size=5)
# For each iteration and request: None preempts it, 0 lets it wait, else a chunk.
plans = st.lists(st.lists(st.sampled_from([*CHUNKS, 1, 5, 0, None]), min_size=5, max_size=5), max_size=25)

Plan = list[list[int | None]]
Wish = tuple[tuple[int, ...], int, SamplingParams]


@pytest.fixture(scope="module", params=["reference", "cpu"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp("tiny")
    save_llama(path)
    return make_engine(path, request.param)


@pytest.fixture(scope="module")
def epochs() -> Iterator[int]:
    return count(1)


def make_engine(path: Path, attention: str) -> Engine:
    options = EngineOptions(dtype="float32", block_size=BLOCK_SIZE, num_blocks=200, attention=attention)
    return Engine.load(path, options)


@settings(max_examples=40, deadline=None)
@given(wishes=requests, plan=plans)
def test_a_text_does_not_depend_on_its_schedule(
    engine: Engine, epochs: Iterator[int], wishes: list[Wish], plan: Plan
) -> None:
    driver = run(Driver(engine, next(epochs)), wishes, plan)
    texts = driver.finish()
    alone = [text_alone(engine, next(epochs), request) for request in driver.requests]
    assert texts == alone


def run(driver: Driver, wishes: list[Wish], plan: Plan) -> Driver:
    for wish in wishes:
        driver.add(*wish)
    for choices in plan:
        wanted: dict[int, int] = {}
        for index, (request, choice) in enumerate(zip(driver.requests, choices, strict=False)):
            if choice is None:
                driver.preempt(index)
            elif choice and not request.done:
                wanted[index] = choice
        driver.step(wanted)
    return driver


def test_hits_and_preemption_occur_in_such_schedules(engine: Engine, epochs: Iterator[int]) -> None:
    """The property above means something: a second request reads the first one's blocks, a third resumes its own."""
    greedy = SamplingParams(temperature=0)
    driver = Driver(engine, next(epochs))
    driver.add((*PREFIX, 1), 6, greedy)
    driver.add((*PREFIX, 2), 6, greedy)
    driver.step({0: 1 << 20})
    driver.step({0: 1, 1: 1})
    assert driver.num_hit_blocks == len(PREFIX) // BLOCK_SIZE
    driver.preempt(1)
    driver.step({1: 5})
    assert driver.num_hit_blocks > len(PREFIX) // BLOCK_SIZE
    texts = driver.finish()
    assert texts == [text_alone(engine, next(epochs), request) for request in driver.requests]
    assert texts[0] != texts[1]
