"""Text comes in pieces that join to the whole, whatever the tokens are and however they are grouped."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.types import StopParams
from gateway.model import ServedModel
from gateway.text import TextStream
from tests.gateway.tiny import write_model

TOKENS = st.lists(st.integers(0, 400), max_size=30)
LETTERS = {index: letter.encode() for index, letter in enumerate(["a", "b", "ab", "ba", "c", "é", "aab", ""])}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel.load(write_model(tmp_path_factory.mktemp("text")), "tiny")


def pieces(stream: TextStream, groups: Sequence[Sequence[int]]) -> list[str]:
    shown = []
    for group in groups:
        shown.append(stream.feed(group))
        if stream.stopped:
            return shown
    return [*shown, stream.finish()]


@st.composite
def grouped(draw: st.DrawFn, tokens: st.SearchStrategy[list[int]]) -> list[list[int]]:
    left, groups = draw(tokens), []
    while left:
        size = draw(st.integers(1, 6))
        groups.append(left[:size])
        left = left[size:]
    return groups


def test_pieces_join_to_what_the_tokenizer_decodes_even_for_broken_utf8(tiny: ServedModel) -> None:
    @given(grouped(TOKENS))
    def check(groups: list[list[int]]) -> None:
        tokens = [token for group in groups for token in group]
        shown = pieces(TextStream(tiny.token_bytes, StopParams(max_tokens=99), ()), groups)
        assert "".join(shown) == tiny.tokenizer.decode(tokens, skip_special_tokens=True) == tiny.decode(tokens)

    check()


def test_no_piece_ends_inside_a_character(tiny: ServedModel) -> None:
    @given(st.text(max_size=20))
    def check(text: str) -> None:
        tokens = [token for byte in text.encode() for token, data in tiny.token_bytes.items() if data == bytes([byte])]
        stream = TextStream(tiny.token_bytes, StopParams(max_tokens=99), ())
        shown = pieces(stream, [[token] for token in tokens])
        assert "".join(shown) == text
        assert all(piece in ("", *text) for piece in shown)

    check()


STOPS = st.lists(st.text("abcé", min_size=1, max_size=4), min_size=1, max_size=4)


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The slow twin: grow the text by a character until a stop string is complete; the longest of those is cut."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(grouped(st.lists(st.integers(0, 7), max_size=20)), STOPS)
def test_the_stop_string_that_completes_earliest_ends_the_text(groups: list[list[int]], stops: list[str]) -> None:
    texts = [LETTERS[token].decode() for group in groups for token in group]
    expected, stopped = cut("".join(texts), stops)
    stream = TextStream(LETTERS, StopParams(max_tokens=99), stops)
    shown = pieces(stream, groups)
    assert "".join(shown) == expected
    assert stream.stopped == stopped
    needed = next((n for n in range(len(texts) + 1) if cut("".join(texts[:n]), stops)[1]), len(texts))
    assert stream.num_tokens == needed


def test_text_is_held_only_while_it_may_begin_a_stop_string() -> None:
    stream = TextStream(LETTERS, StopParams(max_tokens=99), ["aba"])
    assert [stream.feed([token]) for token in (4, 0, 1, 1, 0, 4)] == ["c", "", "", "abb", "", "ac"]


def test_stop_strings_are_shown_within_min_tokens() -> None:
    stream = TextStream(LETTERS, StopParams(max_tokens=99, min_tokens=2), ["ab"])
    assert pieces(stream, [[2], [4], [0, 1, 4]]) == ["ab", "c", ""]
    assert stream.num_tokens == 4


def test_stop_tokens_are_no_text() -> None:
    stream = TextStream(LETTERS, StopParams(max_tokens=99, stop_token_ids=frozenset([4])), ())
    assert pieces(stream, [[0, 4]]) == ["a", ""]
    assert stream.num_tokens == 2


def test_added_tokens_show_iff_they_are_not_special(folder: Path, model: ServedModel) -> None:
    note = model.tokenizer.token_to_id("<note é>")
    assert model.decode([0, 1, note, 2]) == "<note é>"
