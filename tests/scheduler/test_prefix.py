"""What a prefix hit gives, and what may be sealed: mtp_semantics §3.5, §3.7 and appendix B."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.lane import KeyLookahead, LaneConfig
from tests.scheduler.harness import Harness, continuation, generation, lane_config


def hit_of(lane: Harness, prompt: list[int], salt: bytes = b"") -> int:
    """Runs ``prompt`` for one token and returns how many of its tokens were hit."""
    handle = lane.submit(generation(prompt, max_tokens=1, salt=salt))
    lane.run()
    lane.assert_told(handle)
    return lane.stories[handle].num_cached


def eight_modules(mode: KeyLookahead) -> Harness:
    return Harness(lane_config(block_size=16, lookahead=8, max_drafts=8, budget=4096, key_lookahead=mode))


@pytest.mark.parametrize(
    ("num_prompt", "auto", "off", "legacy"),
    list(
        zip(
            [16, 23, 24, 31, 32, 39, 40, 47, 48, 55, 56, 64],
            [0, 0, 16, 16, 16, 16, 32, 32, 32, 32, 48, 48],
            [0, 0, 0, 0, 16, 16, 16, 16, 32, 32, 32, 48],
            [0, 0, 0, 0, 0, 16, 16, 16, 16, 32, 32, 32],
            strict=True,
        ),
    ),
)
def test_a_resent_prompt_hits_what_its_lookahead_proves(num_prompt: int, auto: int, off: int, legacy: int) -> None:
    """The reference's legacy drop wants the given-up block final too; here it is enough that it is known."""
    prompt = list(range(num_prompt))
    for mode, hit in ((KeyLookahead.AUTO, auto), (KeyLookahead.OFF, off)):
        lane = eight_modules(mode)
        assert hit_of(lane, prompt) == 0
        assert hit_of(lane, prompt) == hit >= legacy


@given(num_shared=st.integers(0, 64))
@pytest.mark.parametrize(("mode", "proven"), [(KeyLookahead.AUTO, 8), (KeyLookahead.OFF, 16)])
def test_a_reader_that_diverges_hits_only_where_writer_and_reader_agree_on_the_lookahead(
    num_shared: int, mode: KeyLookahead, proven: int
) -> None:
    lane = eight_modules(mode)
    hit_of(lane, list(range(64)))
    hit = hit_of(lane, [*range(num_shared), *range(500, 600)])
    assert hit == max(0, 16 * ((num_shared - proven) // 16))
    assert hit == 0 or num_shared >= hit + proven


def test_a_reader_by_plain_keys_never_takes_a_block_of_a_writer_that_went_on_otherwise() -> None:
    """The first block is written twice under one plain key; its draft KV fits only one continuation."""
    lane = eight_modules(KeyLookahead.OFF)
    start, ours, theirs = list(range(16)), list(range(100, 132)), list(range(200, 232))
    for prompt in ([*start, *theirs], [*start, *ours], [*start, *ours]):
        lane.submit(generation(prompt, max_tokens=1))
        lane.run()
    _, first, second = [new for step in lane.steps for new in step.fresh]
    assert (first.num_computed, second.num_computed) == (0, 32)
    assert second.blocks[0][:2] == first.blocks[0][:2]


@pytest.mark.parametrize(("lookahead", "margin"), [(1, 1), (16, 1), (17, 2)])
def test_plain_keys_without_room_for_any_hit_are_refused_at_the_start(lookahead: int, margin: int) -> None:
    def start(max_model_len: int, **fields: Any) -> LaneConfig:
        off = KeyLookahead.OFF
        return lane_config(block_size=16, lookahead=lookahead, max_model_len=max_model_len, key_lookahead=off, **fields)

    longest_without = (1 + margin) * 16
    config = start(longest_without + 1)
    assert config.key_margin(config.groups[0]) == margin
    assert start(longest_without, prefix_caching=False).max_len == longest_without
    with pytest.raises(ValueError, match=r"kv\.key_lookahead"):
        start(longest_without)


@given(
    num_prompt=st.integers(1, 70),
    max_tokens=st.integers(1, 12),
    lookahead=st.integers(0, 9),
    block_size=st.integers(1, 17),
    budget=st.integers(20, 90),
    mode=st.sampled_from(KeyLookahead),
)
def test_a_resend_of_prompt_and_text_hits_all_but_the_lookahead(
    num_prompt: int, max_tokens: int, lookahead: int, block_size: int, budget: int, mode: KeyLookahead
) -> None:
    config = lane_config(num_blocks=300, block_size=block_size, lookahead=lookahead, budget=budget, key_lookahead=mode)
    lane = Harness(config)
    prompt = list(range(num_prompt))
    lane.submit(generation(prompt, max_tokens=max_tokens))
    lane.run()
    again = [*prompt, *continuation(prompt, max_tokens)]
    whole = -(-lookahead // block_size) * block_size
    kept = max(1, lookahead if mode is KeyLookahead.AUTO else whole)
    assert hit_of(lane, again) == block_size * max(0, (len(again) - kept) // block_size)


@given(
    num_prompt=st.integers(1, 40),
    block_size=st.integers(1, 8),
    lookahead=st.integers(0, 6),
    mode=st.sampled_from(KeyLookahead),
)
def test_a_hit_leaves_a_token_and_the_lookahead_to_compute(
    num_prompt: int, block_size: int, lookahead: int, mode: KeyLookahead
) -> None:
    lane = Harness(lane_config(num_blocks=99, block_size=block_size, lookahead=lookahead, key_lookahead=mode))
    prompt = list(range(num_prompt))
    hit_of(lane, [*prompt, *range(40, 60)])
    assert hit_of(lane, prompt) <= max(0, num_prompt - max(1, lookahead))


def test_another_salt_hits_nothing() -> None:
    lane = Harness()
    prompt = list(range(20))
    hit_of(lane, prompt, salt=b"a")
    assert hit_of(lane, prompt, salt=b"b") == 0
    assert hit_of(lane, prompt, salt=b"a") == 16


def test_without_prefix_caching_nothing_is_sealed_or_hit() -> None:
    lane = Harness(lane_config(prefix_caching=False))
    assert hit_of(lane, list(range(20))) == 0
    assert hit_of(lane, list(range(20))) == 0
    assert lane.kv.pool.num_cached == 0


def num_sealed(lane: Harness, handle: int) -> list[int]:
    """Blocks of the request that are sealed once each iteration is done; its seals travel with the next proposal."""
    seals = [sum(seal.lease == handle for seal in proposal.seals) if proposal else 0 for proposal in lane.proposals]
    return list(accumulate(seals))[1:]


def test_fourteen_tokens_with_four_modules_seal_as_in_appendix_b() -> None:
    """Verified 2 and 4 of 4. The reference seals one block after the first chunk though two are exact (§3.5)."""
    lane = Harness(lane_config(block_size=4, lookahead=4, max_drafts=4, budget=9))
    lane.submit(generation([999], max_tokens=2, max_drafts=0))
    lane.iterate()
    handle = lane.submit(generation(range(14), max_tokens=9))
    lane.worker.right[handle] = [2, 4]
    lane.run()
    lane.assert_told(handle)
    rows = [(row.num_new, row.num_drafts) for step in lane.steps for row in step.rows if row.handle == handle]
    assert rows == [(8, 0), (6, 0), (1, 4), (1, 4)]
    assert num_sealed(lane, handle)[1:] == [2, 2, 3, 4]


@pytest.mark.parametrize(("num_shared", "hit"), [(14, 8), (15, 8), (16, 12)])
@pytest.mark.parametrize("mode", KeyLookahead)
def test_readers_of_appendix_b(num_shared: int, hit: int, mode: KeyLookahead) -> None:
    lane = Harness(lane_config(block_size=4, lookahead=4, budget=10, key_lookahead=mode))
    lane.submit(generation(range(14), max_tokens=9))
    lane.run()
    text = [*range(14), *continuation(range(14), 9)]
    tail = [] if num_shared == 14 else [5000, 5001, 5002, 5003]
    assert hit_of(lane, [*text[:num_shared], *tail]) == hit


@pytest.mark.parametrize(("budget", "chunks"), [(10, [10, 4]), (11, [10, 4]), (13, [10, 4])])
def test_chunks_of_appendix_b_under_other_budgets(budget: int, chunks: list[int]) -> None:
    lane = Harness(lane_config(block_size=4, lookahead=4, budget=budget))
    lane.submit(generation(range(14), max_tokens=1))
    lane.run()
    assert [row.num_new for step in lane.steps for row in step.rows] == chunks
