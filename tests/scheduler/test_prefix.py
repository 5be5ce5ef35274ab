"""What a prefix hit gives, and what may be sealed: mtp_semantics §3.5, §3.7 and appendix B, without drafts."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.harness import Harness, continuation, generation, lane_config


def hit_of(lane: Harness, prompt: list[int], salt: bytes = b"") -> int:
    """Runs ``prompt`` for one token and returns how many of its tokens were hit."""
    handle = lane.submit(generation(prompt, max_tokens=1, salt=salt))
    lane.run()
    lane.assert_told(handle)
    ended = lane.stories[handle].ended
    assert ended is not None
    return ended.num_cached


def eight_modules() -> Harness:
    return Harness(lane_config(block_size=16, lookahead=8, budget=4096))


@pytest.mark.parametrize(
    ("num_prompt", "hit"),
    list(
        zip([16, 23, 24, 31, 32, 39, 40, 47, 48, 55, 56, 64], [0, 0, *[16] * 4, *[32] * 4, 48, 48], strict=True),
    ),
)
def test_a_resent_prompt_hits_what_its_lookahead_proves(num_prompt: int, hit: int) -> None:
    lane = eight_modules()
    prompt = list(range(num_prompt))
    assert hit_of(lane, prompt) == 0
    assert hit_of(lane, prompt) == hit


@given(num_shared=st.integers(0, 64))
def test_a_reader_that_diverges_hits_only_where_writer_and_reader_agree_on_the_lookahead(num_shared: int) -> None:
    lane = eight_modules()
    hit_of(lane, list(range(64)))
    hit = hit_of(lane, [*range(num_shared), *range(500, 600)])
    assert hit == max(0, 16 * ((num_shared - 8) // 16))
    assert hit == 0 or num_shared >= hit + 8


@given(
    num_prompt=st.integers(1, 70),
    max_tokens=st.integers(1, 12),
    lookahead=st.integers(0, 9),
    block_size=st.integers(1, 17),
    budget=st.integers(20, 90),
)
def test_a_resend_of_prompt_and_text_hits_all_but_the_lookahead(
    num_prompt: int, max_tokens: int, lookahead: int, block_size: int, budget: int
) -> None:
    config = lane_config(num_blocks=300, block_size=block_size, lookahead=lookahead, budget=budget)
    lane = Harness(config)
    prompt = list(range(num_prompt))
    lane.submit(generation(prompt, max_tokens=max_tokens))
    lane.run()
    again = [*prompt, *continuation(prompt, max_tokens)]
    num_proven = len(again) - max(1, lookahead)
    assert hit_of(lane, again) == block_size * max(0, num_proven // block_size)


@given(num_prompt=st.integers(1, 40), block_size=st.integers(1, 8), lookahead=st.integers(0, 6))
def test_a_hit_leaves_a_token_and_the_lookahead_to_compute(num_prompt: int, block_size: int, lookahead: int) -> None:
    lane = Harness(lane_config(num_blocks=99, block_size=block_size, lookahead=lookahead))
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


def test_fourteen_tokens_with_four_modules_seal_as_in_appendix_b() -> None:
    """A running decode takes one token of the least budget, nine, so the prompt has the appendix's eight."""
    lane = Harness(lane_config(block_size=4, lookahead=4, budget=9))
    lane.submit(generation([999], max_tokens=3))
    lane.iterate()
    handle = lane.submit(generation(range(14), max_tokens=7))
    lane.run()
    lane.assert_told(handle)
    chunks = [row.num_new for step in lane.steps for row in step.rows if row.handle == handle]
    assert chunks == [8, 6, 1, 1, 1, 1, 1, 1]
    sealed = [sum(seal.lease == handle for seal in proposal.seals) if proposal else 0 for proposal in lane.proposals]
    # Computed 8, 14, 15 … 20; what an iteration computed is sealed by the proposal of the next.
    assert list(accumulate(sealed)) == [0, 0, 1, 2, 3, 3, 3, 3, 4, 4]


@pytest.mark.parametrize(("num_shared", "hit"), [(14, 8), (15, 8), (16, 12)])
def test_readers_of_appendix_b(num_shared: int, hit: int) -> None:
    lane = Harness(lane_config(block_size=4, lookahead=4, budget=10))
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
