"""Verification emits what drawing one token after another would, up to the first draft that differs."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.types import SamplingParams, StopParams
from worker_svc.rejection import verify
from worker_svc.requests import Held
from worker_svc.sampling import Draw, read, sample

torch.set_num_threads(1)

VOCAB_SIZE = 6
PROMPT = [1, 2, 3, 1]


def held(sampling: SamplingParams, stopping: StopParams) -> Held:
    return Held(
        tokens=list(PROMPT), num_prompt=len(PROMPT), num_computed=3, blocks=[[1]], sampling=sampling, stopping=stopping
    )


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 3.0]),
    frequency_penalty=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 50),
)
stoppings = st.builds(
    StopParams,
    max_tokens=st.just(9),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(
    sampling=samplings,
    stopping=stoppings,
    wrong_at=st.integers(0, 4),
    num_drafts=st.integers(0, 4),
    bad_at=st.integers(0, 5),
    seed=st.integers(0, 100),
)
def test_emitted_tokens_are_those_of_drawing_one_by_one(
    sampling: SamplingParams, stopping: StopParams, wrong_at: int, num_drafts: int, bad_at: int, seed: int
) -> None:
    """The drafts are right up to ``wrong_at``, logits finite up to ``bad_at``."""
    logits = 2 * torch.randn(num_drafts + 1, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    tokens, expected = list(PROMPT), list[int]()
    for row in logits:
        draw = Draw(position=len(tokens), tokens=tokens, num_prompt=len(PROMPT), sampling=sampling, stopping=stopping)
        tokens += sample(row.clone().unsqueeze(0), [draw])
    own = tokens[len(PROMPT) :]
    drafts = own[:num_drafts]
    if wrong_at < num_drafts:
        drafts[wrong_at] = (drafts[wrong_at] + 1) % VOCAB_SIZE
    stops = [index for index, token in enumerate(own) if token in stopping.stop_token_ids]
    expected = own[: min(wrong_at + 1, bad_at, *[index + 1 for index in stops], num_drafts + 1)]
    request = held(sampling, stopping)
    readings = [reading._replace(finite=index < bad_at) for index, reading in enumerate(read(logits))]
    emitted = verify(request, drafts, logits.clone(), readings)
    assert emitted == expected
    assert request.tokens == PROMPT + expected


def test_a_penalty_sees_the_accepted_drafts() -> None:
    """Equal logits at every position: without history, token 5 would be drawn each time."""
    logits = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1.5]).repeat(3, 1)
    request = held(SamplingParams(temperature=0, presence_penalty=2.0), StopParams(max_tokens=9))
    assert verify(request, [5, 4], logits, read(logits)) == [5, 4, 0]
