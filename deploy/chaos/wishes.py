"""What clients ask for: requests of every kind that the API permits, from a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TEXT = (
    "a story about a small cat who could not find her hat in the garden and then it was dark but Tom and Lily had "
    "a red ball with them so they went home to tell mother that the little dog was happy again one day"
)
_WORDS = _TEXT.split()
_NUM_BEGINNINGS = 4
_BEGINNING_WORDS = 60
_NAMES = ("Lily", "Tom", "Ben", "Mia", "Max", "Sue", "Tim", "Anna")
_MAX_TOKENS = 480
"""Words of a prompt and tokens of an answer together: the context of the model is 512."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The ``path`` and JSON ``body`` of one request."""

    path: str
    body: Mapping[str, Any]

    @property
    def num_choices(self) -> int:
        prompts = self.body.get("prompt")
        return int(self.body.get("n", 1)) * (len(prompts) if isinstance(prompts, list) else 1)


def make_wishes(seed: int, count: int, model: str) -> list[Wish]:
    """``count`` requests to ``model``. Each has a seed, so its answer is always the same."""
    rng = random.Random(seed)
    beginnings = [" ".join(rng.choices(_WORDS, k=_BEGINNING_WORDS)) for _ in range(_NUM_BEGINNINGS)]
    return [_wish(rng, beginnings, model) for _ in range(count)]


def _wish(rng: random.Random, beginnings: list[str], model: str) -> Wish:
    prompt = _prompt(rng, beginnings)
    body: dict[str, Any] = {
        "model": model,
        "seed": rng.randrange(1 << 32),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": min(rng.choice((24, 80, 160, 240, 320)), _MAX_TOKENS - 2 * len(prompt.split())),
        "n": rng.choice((1, 1, 1, 2, 3)),
    } | _sampling(rng)
    for chance, field in ((0.7, {"ignore_eos": True}), (0.15, {"cache_salt": "apart"}), (0.15, {"max_drafts": 1})):
        if rng.random() < chance:
            body |= field
    match rng.randrange(6):
        case 0:
            return Wish(path="/v1/completions", body=body | {"prompt": [prompt, _prompt(rng, beginnings[:1])]})
        case 1 | 2:
            return Wish(path="/v1/chat/completions", body=body | {"messages": [{"role": "user", "content": prompt}]})
        case _:
            return Wish(path="/v1/completions", body=body | {"prompt": prompt})


def _prompt(rng: random.Random, beginnings: list[str]) -> str:
    own = " ".join([rng.choice(_NAMES), *rng.choices(_WORDS, k=rng.choice((2, 10, 30)))])
    return f"{rng.choice(beginnings)} {own}" if rng.random() < 0.5 else own


def _sampling(rng: random.Random) -> dict[str, Any]:
    """Temperature, and with some chance each of what else shapes the text or ends it."""
    chosen: dict[str, Any] = {"temperature": rng.choice((0, 0.7, 1.0, 1.3))}
    some = (
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.02},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.3},
        {"repetition_penalty": 1.15},
        {"logit_bias": {str(rng.randrange(10, 400)): 3.0, str(rng.randrange(10, 400)): -8.0}},
        {"stop": [" happy", "Mia"]},
        {"stop_token_ids": [rng.randrange(10, 400)], "min_tokens": 20},
    )
    for field in some:
        if rng.random() < 0.2:
            chosen |= field
    return chosen
