"""Where only the draft group misses, its window is rebuilt from a recomputed tail."""

import pytest

from augury.geometry import KvGroup
from augury.types import Granted, Miss
from tests.kvcache.prompts import Prompter

FULL = KvGroup(block_size=4)
WINDOW = KvGroup(block_size=4, window=8)
LOOKAHEAD = 3


def drafts(width: int, num_rebuilt: int | None) -> KvGroup:
    return KvGroup(block_size=4, window=width, has_drafts=True, num_retained=2, num_rebuilt=num_rebuilt)


def after_other_continuation(*groups: KvGroup, num_shared: int = 40) -> tuple[Prompter, Granted]:
    """What a prompt hits whose first ``num_shared`` of 64 tokens were computed before, but for all draft KV."""
    kv = Prompter(*groups, lookahead=LOOKAHEAD)
    kv.admit(1, range(num_shared))
    kv.seal(1, range(num_shared), num_shared)
    named = kv.names(range(num_shared))
    kv.step(forgotten=tuple(key for keys, group in zip(named, groups, strict=True) if group.has_drafts for key in keys))
    return kv, kv.admit(2, range(64))


@pytest.mark.parametrize(
    ("num_rebuilt", "num_computed", "num_sealed"), [(1, 36, 10), (4, 36, 10), (6, 32, 10), (9, 28, 10)]
)
def test_the_targets_hit_is_taken_but_for_the_tail(num_rebuilt: int, num_computed: int, num_sealed: int) -> None:
    """The tail is recomputed; of the draft group nothing before it exists and no block that is not exact is sealed."""
    _, hit = after_other_continuation(FULL, drafts(4, num_rebuilt))
    assert (hit.num_computed, hit.miss) == (num_computed, Miss.WINDOW)
    first = num_computed // 4
    assert hit.num_sealed == (first, num_sealed)
    assert hit.blocks[0][:first] == tuple(range(1, first + 1))
    assert hit.blocks[1][:first] == (0,) * first
    assert 0 not in hit.blocks[1][first:]
    assert len(hit.blocks[1]) == 16


def test_a_draft_group_that_hits_is_not_rebuilt() -> None:
    kv = Prompter(FULL, drafts(4, 6), lookahead=LOOKAHEAD)
    kv.admit(1, range(64))
    kv.seal(1, range(64), 40)
    hit = kv.admit(2, range(64))
    assert (hit.num_computed, hit.num_sealed) == (40, (10, 10))
    assert hit.blocks[1][:10] == (0,) * 8 + (25, 26)


def test_the_draft_groups_own_hit_is_taken_where_the_tail_would_cost_more() -> None:
    kv = Prompter(FULL, drafts(4, 20), lookahead=LOOKAHEAD)
    kv.admit(1, range(64))
    kv.seal(1, range(64), 40)
    kv.step(forgotten=(kv.names(range(64))[1][9],))
    hit = kv.admit(2, range(64))
    assert (hit.num_computed, hit.num_sealed) == (36, (9, 9))


def test_what_no_tail_can_rebuild_cuts_the_hit() -> None:
    _, hit = after_other_continuation(FULL, drafts(4, None))
    assert (hit.num_computed, hit.num_sealed) == (0, (0, 0))
    _, hit = after_other_continuation(FULL, KvGroup(block_size=4, has_drafts=True))
    assert hit.num_computed == 0


def test_another_draft_group_must_hit_where_the_tail_begins() -> None:
    """It serves the targets' whole hit, but lacks a block of its window before the tail."""
    kv = Prompter(FULL, drafts(4, 6), drafts(12, 6), lookahead=LOOKAHEAD)
    kv.admit(1, range(64))
    kv.seal(1, range(64), 40)
    _, short, long = kv.names(range(64))
    kv.step(forgotten=(*short, long[5]))
    hit = kv.admit(2, range(64))
    assert (hit.num_computed, hit.num_sealed) == (20, (5, 7, 5))
    assert [blocks[:5].count(0) for blocks in hit.blocks] == [0, 5, 1]


def test_a_target_window_must_hit_where_the_tail_begins() -> None:
    """Its block before the tail is gone, so the tail begins further left, where the window is whole."""
    kv = Prompter(FULL, WINDOW, drafts(4, 6), lookahead=LOOKAHEAD)
    kv.admit(1, range(64))
    kv.seal(1, range(64), 40)
    plain, windowed, drafted = kv.names(range(64))
    kv.step(forgotten=(*drafted, windowed[7]))
    hit = kv.admit(2, range(64))
    assert hit.num_computed == 28
    assert hit.num_sealed == (7, 7, 9)
    assert len(plain) == 16
