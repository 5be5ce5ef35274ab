"""The base's answers do not depend on how many are written at once, nor on interruptions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.worker.tiny import save_llama
from worker_svc.model import smollm2
from worker_svc.training import corpus
from worker_svc.training.base import Base
from worker_svc.training.corpus import Text
from worker_svc.training.generate import MAX_ANSWER, generate
from worker_svc.training.hidden import Kept, hidden_states
from worker_svc.training.prompts import Part, chat

torch.set_num_threads(1)

NUM_PROMPTS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, gguf_fields: Mapping[str, Any]) -> Path:
    """A tiny model with SmolLM2's tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    smollm2.build_tokenizer(gguf_fields).save(str(folder / "tokenizer.json"))
    save_llama(folder, vocab_size=49_152, max_position_embeddings=512, tie_word_embeddings=True)
    return folder


def answers(folder: Path, work: Path, num_places: int) -> list[Text]:
    """What ``work`` holds once the model has answered the prompts."""
    generate(folder, Part.EVALUATION, (work / "texts.npz", Kept(work / "hidden")), NUM_PROMPTS, num_places)
    return corpus.load(work / "texts.npz")


@pytest.fixture(scope="module")
def texts(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    return answers(folder, tmp_path_factory.mktemp("texts"), num_places=NUM_PROMPTS)


def test_each_prompt_has_one_answer_even_ones_greedy_odd_ones_drawn(folder: Path, texts: list[Text]) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [(text.index, text.temperature) for text in texts] == [(0, 0.0), (1, 0.8), (2, 0.0)]
    for text in texts:
        assert list(text.tokens[: text.num_prompt]) == tokenizer.encode(chat(Part.EVALUATION, text.index)).ids
        assert 0 < len(text.answer) <= MAX_ANSWER
        assert 2 not in text.answer[:-1]


def test_texts_are_the_same_however_many_are_written_at_once(folder: Path, texts: list[Text], tmp_path: Path) -> None:
    assert answers(folder, tmp_path, num_places=1) == texts


def test_only_missing_prompts_are_answered_after_an_interruption(
    folder: Path, texts: list[Text], tmp_path: Path
) -> None:
    marked = Text(index=1, tokens=(5, 6), num_prompt=1, temperature=0.0, seed=0)
    corpus.save(tmp_path / "texts.npz", [marked, texts[2]])
    assert answers(folder, tmp_path, num_places=2) == [texts[0], marked, texts[2]]


def test_kept_hidden_states_are_those_of_the_whole_texts(folder: Path, texts: list[Text], tmp_path: Path) -> None:
    answers(folder, tmp_path, num_places=2)
    kept = Kept(tmp_path / "hidden").load()
    whole = hidden_states(Base.load(folder, torch.bfloat16, torch.device("cpu")), texts)
    for text, expected in zip(texts, whole, strict=True):
        assert kept[text.index].shape == expected.shape == (len(text.tokens) - 1, expected.shape[1])
        # Both are rounded to bfloat16 on ways of their own.
        assert (kept[text.index] - expected).float().norm() < 0.05 * expected.float().norm()
