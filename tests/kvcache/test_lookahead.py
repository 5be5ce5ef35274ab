"""What a hit proves of draft KV: mtp_semantics §3.6, §3.7, §5.3 and example B. N modules look N tokens ahead."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.geometry import KvGroup
from tests.kvcache.prompts import Prompter

DRAFTS = KvGroup(block_size=16, has_drafts=True)
RESENT = (16, 23, 24, 31, 32, 39, 40, 47, 48, 55, 56, 64)


def num_final(num_computed: int, num_modules: int) -> int:
    """Tokens whose draft KV no repair rewrites: all but the last N - 1."""
    return max(0, num_computed - max(0, num_modules - 1))


def written(num_tokens: int, *groups: KvGroup, num_modules: int, is_proven: bool = True) -> Prompter:
    """A pool where a prompt was computed, its first token drawn, and what is final published."""
    kv = Prompter(*groups, lookahead=num_modules, is_proven=is_proven)
    kv.admit(1, range(num_tokens))
    kv.seal(1, [*range(num_tokens), -1], num_final(num_tokens, num_modules))
    return kv


def diverging(num_shared: int, num_tokens: int = 200) -> list[int]:
    return [*range(num_shared), *range(-num_tokens, 0)]


@pytest.mark.parametrize(
    ("is_proven", "hits"),
    [
        (True, (0, 0, 16, 16, 16, 16, 32, 32, 32, 32, 48, 48)),
        # the reference: 0 0 0 0 0 16 16 16 16 32 32 32, as its proof must leave a token to compute as well
        (False, (0, 0, 0, 0, 16, 16, 16, 16, 32, 32, 32, 48)),
    ],
)
def test_the_same_prompt_again(is_proven: bool, hits: Sequence[int]) -> None:
    """§3.7: B 16, N 8."""
    for num_tokens, hit in zip(RESENT, hits, strict=True):
        kv = written(num_tokens, DRAFTS, num_modules=8, is_proven=is_proven)
        assert len(kv.kv.leases.tables[1][0]) == -(-num_tokens // 16)
        assert kv.probe(range(num_tokens)).num_computed == hit


@given(num_tokens=st.integers(1, 150), size=st.sampled_from([1, 3, 4, 16]), num_modules=st.integers(0, 8))
def test_the_same_prompt_again_in_closed_form(num_tokens: int, size: int, num_modules: int) -> None:
    group = KvGroup(block_size=size, has_drafts=True)
    proven = written(num_tokens, group, num_modules=num_modules).probe(range(num_tokens)).num_computed
    assert proven == size * max(0, (num_tokens - max(1, num_modules)) // size)
    margin = -(-num_modules // size)
    dropped = written(num_tokens, group, num_modules=num_modules, is_proven=False)
    assert dropped.probe(range(num_tokens)).num_computed == size * max(
        0, min((num_tokens - max(1, num_modules)) // size, num_tokens // size - margin)
    )


@pytest.mark.parametrize(("is_proven", "reach"), [(True, 8), (False, 16)])
def test_a_prompt_that_diverges(is_proven: bool, reach: int) -> None:
    """§3.7: a hit of h tokens needs X >= h + 8 shared ones, or h + 16 where a whole block is the proof."""
    kv = written(64, DRAFTS, num_modules=8, is_proven=is_proven)
    for num_shared in range(64):
        hit = kv.probe(diverging(num_shared)).num_computed
        assert hit == 16 * min(3, max(0, (num_shared - reach) // 16))


HYBRIDS = [
    (KvGroup(block_size=16), KvGroup(block_size=4, has_drafts=True)),
    (KvGroup(block_size=32), KvGroup(block_size=4, window=8, has_drafts=True, num_retained=7)),
    (KvGroup(block_size=4, has_drafts=True), KvGroup(block_size=8)),
    (KvGroup(block_size=6), KvGroup(block_size=4, has_drafts=True), KvGroup(block_size=4, window=5)),
]


@pytest.mark.parametrize("groups", HYBRIDS)
@pytest.mark.parametrize("is_proven", [True, False])
@pytest.mark.parametrize("num_modules", [1, 3, 8])
def test_no_hit_takes_draft_kv_of_another_continuation(
    groups: tuple[KvGroup, ...], is_proven: bool, num_modules: int
) -> None:
    """§3.6, where dropping one block of the draft group is unsound: 28 and 12 violations for the first two hybrids."""
    kv = written(96, *groups, num_modules=num_modules, is_proven=is_proven)
    hits = {kv.probe(diverging(num_shared)).num_computed: num_shared for num_shared in reversed(range(97))}
    assert max(hits) > 0
    assert all(num_shared >= hit + num_modules for hit, num_shared in hits.items() if hit)


def test_a_target_groups_hit_is_not_cut_by_the_lookahead() -> None:
    """Its keys are plain: a model whose drafts do not share it loses nothing but what the draft group loses."""
    target = KvGroup(block_size=16)
    kv = written(64, target, num_modules=8)
    assert kv.probe(diverging(48)).num_computed == 48


def test_blocks_published_while_drafts_are_accepted() -> None:
    """§3.7: prompt 20, accepted 8, 0, 3, 8, 8."""
    kv = Prompter(DRAFTS, lookahead=8)
    kv.admit(1, range(100))
    computed, sealed, counts = 20, 0, []
    for accepted in (8, 0, 3, 8, 8):
        computed += accepted + 1
        kv.seal(1, range(computed + 1), num_final(computed, 8), [sealed])
        sealed = sum(kv.kv.pool.find(key) is not None for key in kv.names(range(100))[0])
        counts.append(sealed)
    assert counts == [1, 1, 1, 2, 2]


def test_a_block_is_found_once_the_token_behind_it_is_known() -> None:
    """§5.3: B 2, one module, prompt of 4."""
    kv = Prompter(KvGroup(block_size=2, has_drafts=True), lookahead=1)
    kv.admit(1, range(4))
    kv.seal(1, [0, 1, 2, 3], 4)
    assert kv.probe([0, 1, 2, 3, 5, 7]).num_computed == 2
    kv.seal(1, [0, 1, 2, 3, 5], 4, [1])
    assert kv.probe([0, 1, 2, 3, 5, 7]).num_computed == 4
    assert kv.probe([0, 1, 2, 3, 6, 7]).num_computed == 2


def test_a_story_of_four_modules() -> None:
    """Example B: N 4, B 4, prompt of 14 tokens in chunks of 8 and 6, then 2 and 4 accepted drafts."""
    kv = Prompter(KvGroup(block_size=4, has_drafts=True), lookahead=4)
    kv.admit(1, range(40))
    sealed = 0
    for known, computed, num_sealed in ((14, 8, 1), (15, 14, 2), (18, 17, 3), (23, 22, 4)):
        kv.seal(1, range(known), num_final(computed, 4), [sealed])
        sealed = sum(kv.kv.pool.find(key) is not None for key in kv.names(range(40))[0])
        assert sealed == num_sealed
    assert kv.probe(range(14)).num_computed == 8
    assert kv.probe(diverging(15)).num_computed == 8
    assert kv.probe(diverging(16)).num_computed == 12
