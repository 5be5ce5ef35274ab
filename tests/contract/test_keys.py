"""Block keys: what they depend on, and that every process makes the same ones."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from augury.keys import KEY_BYTES, KeyDomain, block_key, group_key, root_key

tokens_lists = st.lists(st.integers(0, 3), max_size=24)
block_sizes = st.integers(1, 5)
lookaheads = st.integers(0, 4)


def keys_of(
    tokens: list[int], block_size: int, lookahead: int = 0, fingerprint: str = "f", salt: bytes = b""
) -> list[bytes]:
    keys: list[bytes] = []
    KeyDomain(block_size=block_size, lookahead=lookahead).extend(keys, root_key(fingerprint, salt), tokens)
    return keys


def test_known_keys() -> None:
    root = root_key("llama-bf16", b"tenant")
    assert root.hex() == "7cfb4d7e24ddc3a65054fd472e1d2241"
    assert block_key(root, [1, 2, 3, 4]).hex() == "8b137428e142fdf9c27b88592eeb1d6f"
    assert [key.hex() for key in keys_of(list(range(9)), 4)] == [
        "aaba6b4b1c95dc6a75cf112325fb5a43",
        "0bc18f1a3bc67e989c73fd14ff4684a1",
    ]
    assert [key.hex() for key in keys_of(list(range(9)), 4, lookahead=1)] == [
        "a8be403a1104d083e9219ba016dfe276",
        "ca91f2002b5af4a888af405113f77a34",
    ]


def test_another_process_makes_the_same_keys() -> None:
    code = "from augury.keys import *; print(block_key(root_key('f', b's'), [1, 2]).hex())"
    commands = [[sys.executable, "-c", code]] * 2
    printed = [
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for command, seed in zip(commands, "12", strict=True)
    ]
    assert printed == [block_key(root_key("f", b"s"), [1, 2]).hex() + "\n"] * 2


@given(tokens=tokens_lists, block_size=block_sizes, lookahead=lookaheads)
def test_a_key_for_every_full_block_whose_lookahead_is_known(
    tokens: list[int], block_size: int, lookahead: int
) -> None:
    keys = keys_of(tokens, block_size, lookahead)
    assert len(keys) == max(0, (len(tokens) - lookahead) // block_size)
    assert all(len(key) == KEY_BYTES for key in keys)


@given(data=st.data(), block_size=block_sizes, lookahead=lookaheads)
def test_a_changed_token_changes_every_key_that_covers_it_and_no_other(
    data: st.DataObject, block_size: int, lookahead: int
) -> None:
    tokens = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=24))
    place = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
    pairs = zip(keys_of(tokens, block_size, lookahead), keys_of(changed, block_size, lookahead), strict=True)
    for index, (before, after) in enumerate(pairs):
        assert (before == after) == (place >= (index + 1) * block_size + lookahead)


@given(first=tokens_lists, second=tokens_lists, block_size=block_sizes, lookahead=lookaheads)
def test_equal_keys_mean_equal_tokens_up_to_the_end_of_the_lookahead(
    first: list[int], second: list[int], block_size: int, lookahead: int
) -> None:
    pairs = zip(keys_of(first, block_size, lookahead), keys_of(second, block_size, lookahead), strict=False)
    for index, (one, other) in enumerate(pairs):
        end = (index + 1) * block_size + lookahead
        assert (one == other) == (first[:end] == second[:end])


@given(first=tokens_lists, second=tokens_lists)
def test_equal_keys_mean_equal_places(first: list[int], second: list[int]) -> None:
    shared = set(keys_of(first, 2)) & set(keys_of(second, 2))
    for key in shared:
        assert keys_of(first, 2).index(key) == keys_of(second, 2).index(key)


@given(
    one=st.tuples(st.text("ab", max_size=3), st.binary(max_size=3)),
    other=st.tuples(st.text("ab", max_size=3), st.binary(max_size=3)),
)
def test_models_and_salts_share_no_key(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    keys, others = keys_of([1, 2, 3], 1, 0, *one), keys_of([1, 2, 3], 1, 0, *other)
    assert (keys == others) == (one == other)
    assert one == other or not set(keys) & set(others)


def test_the_border_between_fingerprint_and_salt_counts() -> None:
    assert root_key("ab", b"c") != root_key("a", b"bc")


@given(tokens=tokens_lists, cut=st.integers(0, 24), block_size=block_sizes, lookahead=lookaheads)
def test_extending_step_by_step_equals_all_at_once(
    tokens: list[int], cut: int, block_size: int, lookahead: int
) -> None:
    keys = keys_of(tokens[:cut], block_size, lookahead)
    KeyDomain(block_size=block_size, lookahead=lookahead).extend(keys, root_key("f", b""), tokens)
    assert keys == keys_of(tokens, block_size, lookahead)


@given(tokens=tokens_lists, block_size=block_sizes)
def test_a_longer_lookahead_makes_other_keys(tokens: list[int], block_size: int) -> None:
    plain, ahead = keys_of(tokens, block_size), keys_of(tokens, block_size, lookahead=2)
    assert not set(plain) & set(ahead)


@given(tokens=tokens_lists, changed=st.integers(0, 23), block_size=block_sizes, lookahead=lookaheads)
def test_what_else_a_stretch_depends_on_changes_the_keys_that_cover_it(
    tokens: list[int], changed: int, block_size: int, lookahead: int
) -> None:
    keys: list[bytes] = []
    domain = KeyDomain(block_size=block_size, lookahead=lookahead)
    domain.extend(keys, root_key("f", b""), tokens, lambda start, end: b"x" if start <= changed < end else b"")
    for index, (plain, other) in enumerate(zip(keys_of(tokens, block_size, lookahead), keys, strict=True)):
        assert (plain == other) == (changed >= (index + 1) * block_size + lookahead)


@given(tokens=tokens_lists, groups=st.lists(st.integers(0, 255), min_size=2, max_size=4, unique=True))
def test_groups_share_no_name(tokens: list[int], groups: list[int]) -> None:
    names = [{group_key(key, group) for key in keys_of(tokens, 2)} for group in groups]
    assert len(set.union(*names)) == sum(map(len, names))


def test_a_single_group_is_named_by_the_key_itself() -> None:
    assert group_key(block_key(b"", [1]), 0) == block_key(b"", [1])
