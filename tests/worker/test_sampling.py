"""Draws follow the distribution that the parameters describe, from noise of (seed, position, token id) alone."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from augury.types import SamplingParams, StopParams
from worker_svc.sampling import Draw, exponential_noise, sample

torch.set_num_threads(1)

NO_STOP = StopParams(max_tokens=10)


def draw(
    logits: Sequence[float] | torch.Tensor,
    position: int = 5,
    tokens: Sequence[int] = (0,) * 9,
    num_prompt: int = 3,
    stopping: StopParams = NO_STOP,
    **sampling: Any,
) -> int:
    row = Draw(
        position=position,
        tokens=tokens,
        num_prompt=num_prompt,
        sampling=SamplingParams(**sampling),
        stopping=stopping,
    )
    (token,) = sample(torch.as_tensor(logits).clone().unsqueeze(0), [row])
    return token


# --- noise ---


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """In standard deviations over its mean, for many degrees of freedom about normal."""
    expected = probabilities.double() * counts.sum()
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("along", ["seed", "position"])
def test_draws_follow_softmax_over_seeds_and_over_positions(along: str) -> None:
    num_draws, logits = 20_000, torch.linspace(-2, 2, 40)
    draws = [
        Draw(
            position=index if along == "position" else 7,
            tokens=(),
            num_prompt=0,
            sampling=SamplingParams(seed=index if along == "seed" else 7),
            stopping=NO_STOP,
        )
        for index in range(num_draws)
    ]
    tokens = sample(logits.repeat(num_draws, 1), draws)
    counts = torch.tensor(tokens).bincount(minlength=len(logits))
    assert chi_square(counts, logits.softmax(-1)) < 4


def test_noise_is_exponential_and_independent_of_its_neighbours() -> None:
    ids = torch.arange(4096)
    noise = torch.stack([exponential_noise(seed, position, ids) for seed in range(8) for position in range(32)])
    uniform = (-noise).exp()
    bins = (uniform * 64).long().flatten().bincount(minlength=64)
    assert chi_square(bins, torch.full((64,), 1 / 64)) < 4
    for shifted in (uniform.roll(1, 0), uniform.roll(32, 0), uniform.roll(1, 1)):
        correlation = torch.corrcoef(torch.stack([uniform.flatten(), shifted.flatten()]))[0, 1]
        assert abs(correlation) < 4 / math.sqrt(uniform.numel())


def test_noise_is_the_same_in_every_release() -> None:
    """splitmix64 in plain Python: text for a seed must not change with the implementation."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    gamma = 0x9E3779B97F4A7C15
    for seed, position, token in [(0, 0, 0), (1, 2, 3), (2**64 - 1, 2**20, 2**18), (2**63, 7, 49151)]:
        stream = mix((mix(seed) + position * gamma) % 2**64)
        bits = mix((stream + token * gamma) % 2**64) >> 12
        expected = -math.log((bits + 0.5) / 2**52)
        assert float(exponential_noise(seed, position, torch.tensor([token]))) == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_noise_is_positive_and_finite(seed: int, position: int) -> None:
    noise = exponential_noise(seed, position, torch.arange(100))
    assert (noise > 0).all() and noise.isfinite().all()


# --- filters, against what they say in words ---


def kept_tokens(logits: torch.Tensor, sampling: SamplingParams) -> list[int]:
    """Slow and obvious: each filter looks at one token after another."""
    scores = {token: value / sampling.temperature for token, value in enumerate(logits.double().tolist())}
    if sampling.top_k is not None:
        scores = {t: s for t, s in scores.items() if sum(other > s for other in scores.values()) < sampling.top_k}
    top = max(scores.values())
    weights = {token: math.exp(score - top) for token, score in scores.items()}
    total = math.fsum(weights.values())
    if sampling.top_p < 1:
        weights = {
            token: weight
            for token, weight in weights.items()
            if weight == 1 or math.fsum(w for w in weights.values() if w > weight) < sampling.top_p * total
        }
    return [token for token, weight in weights.items() if weight >= sampling.min_p]


# Eighths and powers of two keep twin and subject free of rounding, so that ties and edges are exact.
logit_rows = st.lists(st.integers(-24, 24).map(lambda n: n / 8), min_size=2, max_size=30).map(torch.tensor)
filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.none() | st.integers(1, 40),
    top_p=st.sampled_from([0.01, 0.3, 0.613, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.051, 0.3]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=150, deadline=None)
@given(logits=logit_rows, sampling=filters)
def test_a_draw_is_the_race_among_the_tokens_that_the_filters_keep(
    logits: torch.Tensor, sampling: SamplingParams
) -> None:
    kept = kept_tokens(logits, sampling)
    noise = exponential_noise(sampling.seed, 5, torch.arange(len(logits)))
    times = {token: float(noise[token]) / math.exp(float(logits[token]) / sampling.temperature) for token in kept}
    row = Draw(position=5, tokens=(0,) * 9, num_prompt=3, sampling=sampling, stopping=NO_STOP)
    assert sample(logits.unsqueeze(0).clone(), [row]) == [min(kept, key=times.__getitem__)]


def test_top_p_finds_its_edge_beyond_the_likeliest_thousand() -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 0.1
    sampling = SamplingParams(top_p=0.6)
    kept = kept_tokens(logits, sampling)
    assert 1024 < len(kept) < 5000
    drawn = {draw(logits, position=position, top_p=0.6) for position in range(2000)}
    assert drawn <= set(kept)
    rarest = sorted(kept, key=lambda token: float(logits[token]))[: len(kept) // 4]
    assert drawn & set(rarest)


def test_an_extreme_temperature_neither_overflows_nor_divides_by_zero() -> None:
    logits = [1.0, 3.0, 2.999]
    assert draw(logits, temperature=1e-30) == 1
    assert {draw(logits, position=p, temperature=1e30) for p in range(50)} == {0, 1, 2}


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    assert draw([0.0, 2.0, 1.0, 2.0], temperature=0) == 1


# --- penalties, bias, min_tokens ---


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    tokens = [3, 3, 7, 9, 11]
    processed: Any = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([tokens]), logits.clone().unsqueeze(0))
    for position in range(40):
        ours = draw(logits, 5, tokens * 9, repetition_penalty=1.7, seed=position)
        assert ours == draw(processed[0], 5, repetition_penalty=1.0, seed=position)


@given(
    logits=st.lists(st.integers(-8, 8), min_size=6, max_size=6),
    tokens=st.lists(st.integers(0, 5), min_size=4, max_size=12),
    presence=st.sampled_from([-2.0, 0.0, 1.5]),
    frequency=st.sampled_from([-1.0, 0.0, 0.5]),
)
@settings(deadline=None)
def test_presence_and_frequency_count_what_was_emitted_before(
    logits: list[int], tokens: list[int], presence: float, frequency: float
) -> None:
    position = len(tokens) - 1
    counts = Counter(tokens[3:position])
    expected = [
        float(value) - presence * (counts[token] > 0) - frequency * counts[token] for token, value in enumerate(logits)
    ]
    got = draw(
        [float(value) for value in logits],
        position,
        tokens,
        temperature=0,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    assert got == expected.index(max(expected))


def test_logit_bias_is_added_after_the_penalties() -> None:
    logits = [1.0, 2.0, 4.0]
    assert draw(logits, temperature=0, logit_bias={2: -100.0}) == 1
    assert draw(logits, temperature=0, logit_bias={0: 3.5}) == 0
    # Penalised first: 4 / 4 + 1.5 = 2.5; the other way round it would be 1.375.
    assert draw(logits, tokens=(2,) * 9, temperature=0, repetition_penalty=4.0, logit_bias={2: 1.5}) == 2


def test_stop_tokens_are_not_drawn_before_min_tokens() -> None:
    stopping = StopParams(max_tokens=9, min_tokens=3, stop_token_ids=frozenset({1, 2}))
    logits = [0.0, 9.0, 8.0]
    first_free = 3 + 3
    assert draw(logits, first_free - 1, stopping=stopping, temperature=0, logit_bias={1: 50.0}) == 0
    assert draw(logits, first_free, stopping=stopping, temperature=0) == 1


def test_a_row_is_drawn_as_if_alone() -> None:
    rng = torch.Generator().manual_seed(2)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"top_k": 3, "seed": 1},
        {"top_p": 0.5, "seed": 1},
        {"min_p": 0.2, "repetition_penalty": 1.5, "temperature": 2.0},
        {"logit_bias": {4: 3.0}, "frequency_penalty": 1.0},
    ]
    logits = torch.randn(len(kinds), 200, generator=rng)
    tokens = list(range(9))
    rows = [
        Draw(position=5, tokens=tokens, num_prompt=3, sampling=SamplingParams(**kind), stopping=NO_STOP)
        for kind in kinds
    ]
    alone = [draw(row, tokens=tokens, **kind) for row, kind in zip(logits, kinds, strict=True)]
    assert sample(logits.clone(), rows) == alone
