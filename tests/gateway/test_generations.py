"""Requests become generations that fit the workers' window, with seeds of their own."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import ContextLengthError, InvalidRequestError, NoWorkerError
from augury.types import Generation
from gateway.generations import choice_seed, generations
from gateway.schema import CompletionRequest
from gateway.window import Window, WindowSource
from tests.gateway.scripted import VOCAB, WINDOW, Script, ScriptedBackend


def make(num_prompt: int, window: int = 50, **fields: Any) -> Generation:
    request = CompletionRequest(prompt="", **fields)
    prompts = [(5,) * num_prompt]
    (made,) = generations(request, prompts, frozenset([2]), Window(max_model_len=window, vocab_size=9), "id", b"salt")
    return made


@given(st.integers(1, 60), st.integers(2, 50), st.none() | st.integers(1, 60))
def test_prompt_and_answer_fill_the_window_at_most(num_prompt: int, window: int, max_tokens: int | None) -> None:
    if num_prompt + (max_tokens or 1) > window:
        with pytest.raises(ContextLengthError):
            make(num_prompt, window, max_tokens=max_tokens)
    else:
        assert make(num_prompt, window, max_tokens=max_tokens).stopping.max_tokens == (
            max_tokens or window - num_prompt
        )


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        make(0)


def test_temperatures_too_small_to_divide_by_are_greedy() -> None:
    assert [make(1, temperature=value).sampling.temperature for value in (0.0, 1e-38, 0.01)] == [0, 0, 0.01]


def test_choices_of_neighbouring_seeds_do_not_meet() -> None:
    assert choice_seed(42, 0) == 42
    assert choice_seed(-1, 0) == 2**64 - 1
    assert len({choice_seed(seed, index) for seed in range(100) for index in range(100)}) == 10_000


async def test_the_window_outlives_the_workers_and_is_asked_for_once_by_all_who_wait() -> None:
    class Counting(ScriptedBackend):
        num_asked = 0

        async def describe(self) -> Any:
            self.num_asked += 1
            await asyncio.sleep(0.05)
            return await super().describe()

    backend = Counting(lambda _: Script(tokens=[]), num_workers=0)
    source = WindowSource(backend)
    answers = await asyncio.gather(*(source.current() for _ in range(10)), return_exceptions=True)
    assert all(isinstance(answer, NoWorkerError) for answer in answers)
    assert backend.num_asked == 1
    backend.num_workers = 1
    assert await source.current() == Window(max_model_len=WINDOW, vocab_size=VOCAB)
    backend.reachable = False
    assert await source.current() == Window(max_model_len=WINDOW, vocab_size=VOCAB)
