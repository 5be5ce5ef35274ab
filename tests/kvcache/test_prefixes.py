"""Prefix hits by the numbers of mtp_semantics §5.3; blocks of 16 unless said otherwise."""

from collections.abc import Sequence

import pytest

from augury.geometry import KvGroup
from augury.types import Reserve
from tests.kvcache.prompts import Prompter, granted

FULL = KvGroup(block_size=16)
DRAFTS = KvGroup(block_size=16, has_drafts=True)


def window(width: int, size: int = 16, has_drafts: bool = False) -> KvGroup:
    return KvGroup(block_size=size, window=width, has_drafts=has_drafts)


def compute(kv: Prompter, lease: int, tokens: Sequence[int]) -> None:
    """Admit a prompt, compute all of it, publish what is final: all, as at most one module looks ahead."""
    hit = kv.admit(lease, tokens)
    kv.seal(lease, [*tokens, -1], len(tokens), hit.num_sealed)


def prompt(shared: int, own: int, name: int) -> list[int]:
    return [*range(shared), *[1000 * name + n for n in range(own)]]


def test_blocks_are_shared_freed_and_reused_in_this_order() -> None:
    kv = Prompter(FULL, num_blocks=11)
    compute(kv, 1, prompt(48, 7, 1))
    assert kv.kv.leases.tables[1] == [[1, 2, 3, 4]]
    hit = kv.admit(2, prompt(48, 5, 2))
    assert (hit.num_computed, hit.blocks) == (48, ((1, 2, 3, 5),))
    assert kv.kv.inspect().groups[0].held == 3 * 2 + 2
    assert kv.kv.pool.num_available == 5
    kv.release(1)
    kv.release(2)
    assert kv.admit(3, prompt(48, 6, 3)).blocks == ((1, 2, 3, 5),)
    kv.release(3)
    assert kv.admit(4, prompt(0, 160, 4)).blocks == ((5, 4, 6, 7, 8, 9, 10, 3, 2, 1),)


def test_blocks_without_a_key_go_first_and_a_prompts_end_before_its_beginning() -> None:
    kv = Prompter(FULL, num_blocks=11)
    compute(kv, 1, prompt(0, 87, 1))
    compute(kv, 2, prompt(0, 48, 2))
    assert kv.kv.pool.num_available == 1
    kv.release(1)
    kv.release(2)
    assert kv.admit(3, prompt(0, 35, 1)).blocks == ((1, 2, 6),)
    assert kv.kv.pool.num_available == 7
    assert kv.admit(4, prompt(0, 112, 4)).blocks == ((10, 5, 4, 3, 9, 8, 7),)


def test_a_request_grows_by_whole_blocks() -> None:
    kv = Prompter(FULL)
    kv.admit(1, range(55))
    grown = [granted(kv.step([Reserve(lease=1, num_slots=n, num_ahead=1)]))[0].blocks for n in (59, 78)]
    assert grown == [((),), ((5,),)]


@pytest.mark.parametrize(("num_slots", "num_blocks"), [(3 + 2, 2), (3 + 4, 2)])
def test_slots_for_drafts_are_part_of_the_blocks(num_slots: int, num_blocks: int) -> None:
    """B 4: 3 tokens and 2 or 4 drafts."""
    kv = Prompter(KvGroup(block_size=4))
    (blocks,) = granted(kv.step([Reserve(lease=1, num_slots=num_slots, num_ahead=num_slots)]))[0].blocks
    assert len(blocks) == num_blocks


def test_a_hybrid_hit_leaves_null_blocks_left_of_the_windows() -> None:
    kv = Prompter(FULL, window(32), window(32), num_blocks=21)
    compute(kv, 1, prompt(48, 7, 1))
    assert kv.kv.leases.tables[1] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    hit = kv.admit(2, prompt(48, 5, 2))
    assert (hit.num_computed, hit.num_sealed) == (48, (3, 3, 3))
    assert hit.blocks == ((1, 2, 3, 13), (0, 6, 7, 14), (0, 10, 11, 15))


Removed = Sequence[tuple[int, int]]
"""Group and index of blocks that are no longer found."""


@pytest.mark.parametrize(
    ("removed", "num_blocks"),
    [
        ([(1, 0), (2, 0)], 3),
        ([(0, 0)], 0),
        ([(0, 2), (1, 2), (2, 2)], 2),
        ([(0, 2)], 2),
        ([(1, 2)], 2),
        ([(2, 2)], 2),
        ([(0, 2), (1, 0)], 0),
    ],
)
def test_what_a_hybrid_hit_needs_of_each_group(removed: Removed, num_blocks: int) -> None:
    kv = Prompter(FULL, window(32), window(32))
    compute(kv, 1, prompt(48, 7, 1))
    named = kv.names(prompt(48, 7, 1))
    kv.step(forgotten=tuple(named[group][index] for group, index in removed))
    assert kv.probe(prompt(48, 5, 2)).num_computed == 16 * num_blocks


def test_groups_shorten_a_hit_in_turn_until_none_does() -> None:
    """The second window group takes 5 blocks, for which the first one has the fifth but not the fourth."""
    kv = Prompter(FULL, window(32), window(32))
    compute(kv, 1, range(97))
    named = kv.names(range(97))
    kv.step(forgotten=(named[1][3], named[2][5]))
    assert kv.probe(range(97)).num_computed == 48


def drafting_hybrid(num_blocks: int, is_proven: bool) -> Prompter:
    groups = (DRAFTS, window(48, has_drafts=True), window(48, has_drafts=True))
    kv = Prompter(*groups, num_blocks=num_blocks, lookahead=1, is_proven=is_proven)
    compute(kv, 1, prompt(96, 7, 1))
    return kv


@pytest.mark.parametrize("is_proven", [True, False])
def test_where_all_groups_draft_the_block_whose_lookahead_differs_is_not_hit(is_proven: bool) -> None:
    """The reference finds 6 blocks and drops one; here the sixth block's name differs."""
    hit = drafting_hybrid(31, is_proven).admit(2, prompt(96, 5, 2))
    assert hit.num_computed == 80
    assert hit.blocks == ((1, 2, 3, 4, 5, 22, 23), (0, 0, 10, 11, 12, 24, 25), (0, 0, 17, 18, 19, 26, 27))


@pytest.mark.parametrize(
    ("removed", "num_blocks"),
    [
        ([(1, 0), (2, 0)], 5),
        ([(0, 0)], 0),
        ([(0, 4), (1, 4), (2, 4)], 4),
        ([(0, 4)], 4),
        ([(1, 3)], 3),
        ([(2, 3)], 3),
        ([(0, 4), (1, 0)], 4),
    ],
)
def test_what_a_hit_needs_where_all_groups_draft(removed: Removed, num_blocks: int) -> None:
    """The last block is the last one that is hit: nothing behind it is looked at."""
    kv = drafting_hybrid(200, is_proven=True)
    named = kv.names(prompt(96, 7, 1))
    kv.step(forgotten=tuple(named[group][index] for group, index in removed))
    assert kv.probe(prompt(96, 5, 2)).num_computed == 16 * num_blocks


def test_a_full_and_a_window_group_that_draft() -> None:
    kv = Prompter(DRAFTS, window(32, has_drafts=True), lookahead=1)
    compute(kv, 1, prompt(64, 7, 1))
    assert kv.probe(prompt(64, 5, 2)).num_computed == 48


@pytest.mark.parametrize(
    ("num_tokens", "is_proven", "num_blocks"), [(48, True, 2), (37, True, 2), (48, False, 2), (37, False, 1)]
)
def test_an_identical_prompt_with_one_module(num_tokens: int, is_proven: bool, num_blocks: int) -> None:
    """The reference's drop finds one block of 48 tokens, as it gives up a block that no token is left to prove."""
    kv = Prompter(DRAFTS, lookahead=1, is_proven=is_proven)
    compute(kv, 1, range(num_tokens))
    assert kv.probe(range(num_tokens)).num_computed == 16 * num_blocks


@pytest.mark.parametrize(("removed", "num_blocks"), [([], 2), ([0], 2), ([1], 1), ([0, 1], 0)])
def test_a_window_of_one_block_that_drafts(removed: Sequence[int], num_blocks: int) -> None:
    """w 16, 37 tokens. With nothing dropped, a hit of two blocks needs the second only."""
    kv = Prompter(window(16, has_drafts=True), lookahead=1)
    compute(kv, 1, range(37))
    named = kv.names(range(37))
    kv.step(forgotten=tuple(named[0][index] for index in removed))
    assert kv.probe(range(37)).num_computed == 16 * num_blocks


@pytest.mark.parametrize(("num_first", "num_then", "hit"), [(128, 128, 96), (40, 41, 32)])
def test_a_hit_is_a_multiple_of_the_scheduler_block(num_first: int, num_then: int, hit: int) -> None:
    """Full 32 and a window group of blocks of 8, w 8, that drafts."""
    kv = Prompter(KvGroup(block_size=32), window(8, 8, has_drafts=True), lookahead=1)
    compute(kv, 1, range(num_first))
    assert kv.probe(range(num_then)).num_computed == hit


def test_two_window_groups_of_which_one_drafts() -> None:
    kv = Prompter(KvGroup(block_size=32), window(8, 8, has_drafts=True), window(8, 8), lookahead=1)
    compute(kv, 1, range(72))
    assert kv.probe(range(73)).num_computed == 64


def test_groups_of_different_block_sizes() -> None:
    """Full 32 and blocks of 16 with w 32: 160 tokens, 112 of them computed.

    Here whole blocks are published in every group; the reference holds back the seventh, which no hit can end at.
    """
    kv = Prompter(KvGroup(block_size=32), window(32))
    kv.step([Reserve(lease=1, num_slots=112, num_ahead=112)])
    assert kv.kv.leases.tables[1] == [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]]
    kv.seal(1, range(160), 112)
    named = kv.names(range(160))
    assert kv.kv.pool.find(named[1][6]) == 11
    hits = [kv.probe(range(n)) for n in (113, 97)]
    assert [hit.num_computed for hit in hits] == [96, 96]
    assert {hit.num_sealed for hit in hits} == {(3, 6)}
    kv.step(forgotten=(named[1][6], named[1][5]))
    assert kv.probe(range(113)).num_computed == 64


def test_a_model_of_one_window_group() -> None:
    """w 16, 256 tokens, everything published."""
    kv = Prompter(window(16))
    compute(kv, 1, range(256))
    hit = kv.probe(range(256))
    assert hit.num_computed == 240
    assert hit.blocks == ((*[0] * 14, 15, 17),)
