"""Texts that the base wrote: prompts and answers as token ids, kept in one ``.npz`` file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

_NGRAM = 4
_MIN_DISTINCT = 0.7
_REPEATED = 8
"""So many runs of tokens in a row that came before are a repetition."""
_MIN_LENGTH = 64
"""Shorter answers have too few n-grams for the share to mean anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """An answer: ``tokens`` are its prompt's ``num_prompt`` ids and its own; ``seed`` drew it at ``temperature``."""

    index: int
    tokens: tuple[int, ...]
    num_prompt: int
    temperature: float
    seed: int

    @property
    def answer(self) -> tuple[int, ...]:
        return self.tokens[self.num_prompt :]


def loops(answer: Sequence[int]) -> bool:
    """Whether the answer goes round in circles: under 70 % of its runs of four tokens are distinct."""
    if len(answer) < _MIN_LENGTH:
        return False
    ngrams = [tuple(answer[i : i + _NGRAM]) for i in range(len(answer) - _NGRAM + 1)]
    return len(set(ngrams)) < _MIN_DISTINCT * len(ngrams)


def without_loop(text: Text) -> Text:
    """The text, cut where its answer begins to repeat itself if it loops."""
    if not loops(text.answer):
        return text
    seen: set[tuple[int, ...]] = set()
    run = 0
    for start in range(len(text.answer)):
        ngram = text.answer[start : start + _NGRAM]
        run = run + 1 if ngram in seen else 0
        seen.add(ngram)
        if run == _REPEATED:
            return replace(text, tokens=text.tokens[: text.num_prompt + start + 1 - _REPEATED])
    return text


def save(path: Path, texts: Sequence[Text]) -> None:
    """Write the file; it appears whole or not at all."""
    partial = path.with_suffix(".partial.npz")
    np.savez_compressed(
        partial,
        tokens=np.array([token for text in texts for token in text.tokens], np.int32),
        ends=np.cumsum([len(text.tokens) for text in texts], dtype=np.int64),
        num_prompt=np.array([text.num_prompt for text in texts], np.int32),
        index=np.array([text.index for text in texts], np.int64),
        temperature=np.array([text.temperature for text in texts], np.float64),
        seed=np.array([text.seed for text in texts], np.int64),
    )
    os.replace(partial, path)


def load(path: Path) -> list[Text]:
    """The texts of the file, in the order of their prompts; none where there is no file."""
    if not path.is_file():
        return []
    with np.load(path) as columns:
        tokens = columns["tokens"].tolist()
        spans = pairwise([0, *columns["ends"].tolist()])
        facts = [columns[name].tolist() for name in ("num_prompt", "index", "temperature", "seed")]
        texts = [
            Text(index=index, tokens=tuple(tokens[start:end]), num_prompt=num, temperature=temperature, seed=seed)
            for (start, end), num, index, temperature, seed in zip(spans, *facts, strict=True)
        ]
    return sorted(texts, key=lambda text: text.index)
