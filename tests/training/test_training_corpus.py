"""Stored texts and the filter for answers that go round in circles."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from worker_svc.training import corpus
from worker_svc.training.corpus import Text
from worker_svc.training.vocabulary import draft_ids

TOKENS = st.lists(st.integers(0, 49_151), min_size=1, max_size=30).map(tuple)


@st.composite
def texts(draw: st.DrawFn) -> list[Text]:
    return [
        Text(
            index=index,
            tokens=draw(TOKENS) + draw(TOKENS),
            num_prompt=1,
            temperature=draw(st.sampled_from([0.0, 0.8])),
            seed=draw(st.integers(0, 2**40)),
        )
        for index in sorted(draw(st.sets(st.integers(0, 1000), max_size=5)))
    ]


@given(written=texts(), rng=st.randoms())
def test_texts_come_back_in_the_order_of_their_prompts(written: list[Text], rng: random.Random) -> None:
    shuffled = rng.sample(written, len(written))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "texts.npz"
        assert corpus.load(file) == []
        corpus.save(file, shuffled)
        assert corpus.load(file) == written
        assert [entry.name for entry in file.parent.iterdir()] == ["texts.npz"]


@given(period=st.integers(1, 30), start=st.integers(0, 60))
def test_an_answer_that_repeats_its_last_words_for_ever_loops(period: int, start: int) -> None:
    answer = list(range(start)) + [1000 + i % period for i in range(240)]
    assert corpus.loops(answer)


@given(length=st.integers(0, 400), rng=st.randoms())
def test_an_answer_without_repetition_does_not_loop(length: int, rng: random.Random) -> None:
    assert not corpus.loops(rng.sample(range(49_152), length))


def test_a_sentence_said_twice_is_no_loop() -> None:
    assert not corpus.loops([*range(100), *range(20)])


@given(period=st.integers(1, 30), start=st.integers(0, 60))
def test_a_looping_text_is_cut_where_it_repeats_itself(period: int, start: int) -> None:
    answer = (*range(start), *(1000 + i % period for i in range(240)))
    text = Text(index=0, tokens=(1, 2, *answer), num_prompt=2, temperature=0.0, seed=0)
    assert corpus.without_loop(text).answer == answer[: start + period]


@given(length=st.integers(1, 400), rng=st.randoms())
def test_a_text_without_a_loop_stays_whole(length: int, rng: random.Random) -> None:
    text = Text(index=0, tokens=tuple(rng.sample(range(500), length)), num_prompt=1, temperature=0.0, seed=0)
    assert corpus.without_loop(text) == text


@pytest.mark.parametrize("size", [260, 270])
def test_the_draft_vocabulary_has_bytes_and_specials_first_and_then_what_is_frequent(size: int) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"word{i}" for i in range(40)]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate([*words, *alphabet])}, "word0"))
    tokenizer.add_special_tokens(["<end>"])
    answer = tuple(i for i in range(20, 40) for _ in range(i))
    text = Text(index=0, tokens=(1, *answer), num_prompt=1, temperature=0.0, seed=0)
    ids = draft_ids([text], tokenizer, size).tolist()
    assert ids == sorted(set(ids)) and len(ids) == size
    assert set(range(40, 40 + 256)) | {296} <= set(ids)
    assert set(ids) - set(range(40, 297)) == set(range(39, 39 - (size - 257), -1))


def test_a_draft_vocabulary_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="4 draft tokens"):
        draft_ids([], Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, "a")), 4)
