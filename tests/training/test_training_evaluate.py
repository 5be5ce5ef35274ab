"""Acceptance measured along a text is what a decode loop would accept, step by step."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.training.tiny_chain import (
    NUM_MODULES,
    all_tokens,
    architecture,
    examples_of,
    random_base,
    random_chain,
    random_text,
)
from worker_svc.sampling import exponential_noise
from worker_svc.training import report
from worker_svc.training.corpus import Text
from worker_svc.training.distill import Example
from worker_svc.training.evaluate import accepted_lengths, lookup, measure_lookup, measure_modules

torch.set_num_threads(1)

VOCAB_SIZE = 5
"""So few that modules with random weights are often right."""


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.0, 0.8]))
def test_measured_acceptance_is_that_of_a_decode_loop(seed: int, temperature: float) -> None:
    torch.manual_seed(seed)
    base = random_base(architecture(VOCAB_SIZE))
    chain, head = random_chain(base.architecture), base.embed_tokens.weight
    text = random_text(seed, 24, 5, VOCAB_SIZE, temperature)
    (example,) = examples_of(base, [text])
    lengths = []
    known = text.num_prompt + 1
    while known + NUM_MODULES <= len(text.tokens):
        drafts = _draft(chain, head, example, known)
        right = [draft == token for draft, token in zip(drafts, text.tokens[known:], strict=False)]
        lengths.append((*right, False).index(False))
        known += lengths[-1] + 1
    measured = measure_modules(chain, all_tokens(base), [example])
    assert measured.num_steps == len(lengths)
    assert measured.mean_accepted == pytest.approx(sum(lengths) / len(lengths))


def _draft(chain: torch.nn.Module, head: torch.Tensor, example: Example, known: int) -> list[int]:
    """What the modules propose after ``known`` tokens, every row worked out anew from these and the drafts so far."""
    text, last_row = example.text, known - 2
    hidden_bte = torch.nn.functional.pad(example.hidden_te[: last_row + 1].float(), (0, 0, 0, NUM_MODULES))[None]
    tokens = list(text.tokens[:known])
    for m in range(NUM_MODULES):
        padded = torch.nn.functional.pad(torch.tensor(tokens), (0, last_row + 1 + NUM_MODULES - len(tokens)))
        with torch.no_grad():
            g_re = chain(hidden_bte, head[padded][None], m + 1)[m][0]
        logits = head @ g_re[last_row]
        if text.temperature > 0:
            noise = exponential_noise(text.seed, known + m, torch.arange(VOCAB_SIZE))
            tokens.append(int(((logits / text.temperature).softmax(-1) / noise).argmax()))
        else:
            tokens.append(int(logits.argmax()))
    return tokens[known:]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4))
@example([1, 2, 3, 9, 1, 2, 3], 2)
def test_lookup_proposes_what_followed_the_last_three_tokens(tokens: list[int], depth: int) -> None:
    found = lookup(tokens, depth)
    places = [i for i in range(3, len(tokens)) if tokens[i - 3 : i] == tokens[-3:]]
    assert found == (tokens[places[-1] : places[-1] + depth] if places else [])


def test_lookup_accepts_all_of_a_copied_text_and_nothing_of_a_new_one() -> None:
    prompt = tuple(range(100, 150))
    copied = Text(index=0, tokens=(*prompt, 1, *prompt), num_prompt=50, temperature=0.0, seed=0)
    new = Text(index=1, tokens=(*prompt, *range(50)), num_prompt=50, temperature=0.0, seed=0)
    hidden = torch.zeros(101, 1)
    examples = [Example(text=text, hidden_te=hidden) for text in (copied, new)]
    assert measure_lookup(examples[:1], 3).mean_accepted > 2
    assert measure_lookup(examples[1:], 3).mean_accepted == 0


@given(tokens=st.lists(st.integers(0, 2), min_size=3, max_size=40), depth=st.integers(1, 4))
def test_steps_cover_the_answer_without_gap_or_overlap(tokens: list[int], depth: int) -> None:
    text = Text(index=0, tokens=tuple(tokens), num_prompt=1, temperature=0.0, seed=0)
    lengths = accepted_lengths(text, depth, lambda at: [0] * depth)
    at = 2
    for length in lengths:
        assert set(tokens[at : at + length]) <= {0}
        assert length == depth or tokens[at + length] != 0
        at += length + 1
    assert at + depth > len(tokens)


def test_the_report_shows_the_mean_and_every_depth() -> None:
    text = Text(index=0, tokens=(1, 2, 3, 4, 5, 1, 2, 3, 4, 5), num_prompt=7, temperature=0.0, seed=0)
    measured = measure_lookup([Example(text=text, hidden_te=torch.zeros(8, 1))], 2)
    assert (measured.reached, measured.num_steps, measured.mean_accepted) == ((1.0, 1.0), 1, 2.0)
    lines = report.table({"lookup": measured}).splitlines()
    assert len(lines) == 2 and "2.00" in lines[1] and "1.00 1.00" in lines[1]
