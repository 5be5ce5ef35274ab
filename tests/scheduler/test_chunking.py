"""Chunk sizes and the token budget against mtp_semantics §2.3, §2.5 and appendix B."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.chunking import chunk, min_budget, share_budget

sizes = st.integers(1, 60)
lookaheads = st.integers(0, 10)


def chunks(prompt: int, budget: int, lookahead: int) -> list[int]:
    taken: list[int] = []
    while (left := prompt - sum(taken)) and (size := chunk(left, budget, lookahead)):
        taken.append(size)
    return taken


@pytest.mark.parametrize(
    ("prompt", "budget", "expected"),
    [
        (100, 92, [92, 8]),
        (100, 93, [92, 8]),
        (100, 96, [92, 8]),
        (100, 99, [92, 8]),
        (100, 100, [100]),
        (108, 100, [100, 8]),
        (33, 16, [16, 9, 8]),
        (24, 16, [16, 8]),
        (23, 16, [15, 8]),
        (9, 9, [9]),
        (20, 16, [12, 8]),
        (18, 9, [9, 9]),
        (17, 9, [9, 8]),
        (16, 9, [8, 8]),
        (12, 9, [4, 8]),
        (10, 9, [2, 8]),
    ],
)
def test_chunks_of_a_prompt_with_eight_modules(prompt: int, budget: int, expected: list[int]) -> None:
    assert chunks(prompt, budget, lookahead=8) == expected


def test_resumed_prompts_are_cut_as_new_ones() -> None:
    assert chunks(55, 40, lookahead=8) == [40, 15]
    assert chunks(56 - 48, 40, lookahead=8) == [8]


@pytest.mark.parametrize(("budget", "first"), [(8, 8), (10, 10), (11, 10), (13, 10), (14, 14)])
def test_first_chunk_of_fourteen_tokens_with_four_modules(budget: int, first: int) -> None:
    assert chunks(14, budget, lookahead=4) == [first, 14 - first][: 2 if first < 14 else 1]


@given(remaining=sizes, budget=st.integers(0, 60), lookahead=lookaheads)
def test_a_chunk_is_the_largest_that_keeps_the_edge_rule(remaining: int, budget: int, lookahead: int) -> None:
    def allowed(size: int) -> bool:
        left = remaining - size
        return size == 0 or left == 0 or left >= lookahead

    assert chunk(remaining, budget, lookahead) == max(filter(allowed, range(min(remaining, budget) + 1)))


@given(remaining=sizes, budget=st.integers(1, 60), lookahead=st.integers(0, 1))
def test_the_edge_rule_changes_nothing_up_to_one_module(remaining: int, budget: int, lookahead: int) -> None:
    assert chunk(remaining, budget, lookahead) == min(remaining, budget)


@given(remaining=sizes, extra=st.integers(0, 20), lookahead=lookaheads)
def test_a_chunk_advances_from_the_documented_budget_on(remaining: int, extra: int, lookahead: int) -> None:
    assert chunk(remaining, min(max(lookahead, 1), remaining) + extra, lookahead) > 0


@given(prompt=st.integers(1, 300), extra=st.integers(0, 40), lookahead=lookaheads)
def test_a_lone_prompt_finishes_in_positive_chunks(prompt: int, extra: int, lookahead: int) -> None:
    taken = chunks(prompt, lookahead + 1 + extra, lookahead)
    assert sum(taken) == prompt
    assert min(taken) > 0
    ends = [sum(taken[: index + 1]) for index in range(len(taken) - 1)]
    assert all(prompt - end >= lookahead for end in ends)


def test_drafts_of_the_second_decode_are_trimmed_to_the_budget() -> None:
    assert share_budget([], [9, 9], 12, lookahead=8) == ([], [9, 3])


def test_decodes_do_not_starve_a_short_prompt() -> None:
    prompt_sizes, decode_sizes = share_budget([6], [9] * 7, 64, lookahead=8)
    assert prompt_sizes == [6]
    assert decode_sizes == [9, 9, 9, 9, 9, 9, 4]


@given(
    prompts=st.lists(sizes, max_size=6),
    decodes=st.lists(st.integers(1, 11), max_size=12),
    budget=st.integers(0, 120),
    lookahead=lookaheads,
)
def test_shares_stay_within_the_budget_and_the_edge_rule(
    prompts: list[int], decodes: list[int], budget: int, lookahead: int
) -> None:
    prompt_sizes, decode_sizes = share_budget(prompts, decodes, budget, lookahead)
    assert (len(prompt_sizes), len(decode_sizes)) == (len(prompts), len(decodes))
    assert sum(prompt_sizes) + sum(decode_sizes) <= budget
    assert all(0 <= size <= wanted for size, wanted in zip(decode_sizes, decodes, strict=True))
    for size, wanted in zip(prompt_sizes, prompts, strict=True):
        assert 0 <= size <= wanted
        assert size == 0 or wanted - size == 0 or wanted - size >= lookahead


@given(
    prompts=st.lists(sizes, max_size=6),
    num_decodes=st.integers(0, 12),
    extra=st.integers(0, 60),
    lookahead=lookaheads,
    max_drafts=st.integers(0, 10),
)
def test_oldest_prompt_and_oldest_decode_both_advance(
    prompts: list[int], num_decodes: int, extra: int, lookahead: int, max_drafts: int
) -> None:
    budget = min_budget(lookahead, max_drafts) + extra
    prompt_sizes, decode_sizes = share_budget(prompts, [1 + max_drafts] * num_decodes, budget, lookahead)
    assert not prompts or prompt_sizes[0] > 0
    assert not num_decodes or decode_sizes[0] == 1 + max_drafts


@given(
    prompts=st.lists(sizes, min_size=1, max_size=6),
    num_decodes=st.integers(0, 12),
    extra=st.integers(0, 60),
    lookahead=lookaheads,
    max_drafts=st.integers(0, 10),
)
def test_every_prompt_finishes_beside_endless_decodes(
    prompts: list[int], num_decodes: int, extra: int, lookahead: int, max_drafts: int
) -> None:
    left, budget = list(prompts), min_budget(lookahead, max_drafts) + extra
    for _ in range(sum(prompts)):
        taken, _ = share_budget(left, [1 + max_drafts] * num_decodes, budget, lookahead)
        left = [wanted - size for wanted, size in zip(left, taken, strict=True) if wanted > size]
    assert left == []


def test_two_prompts_that_livelock_under_a_cap_of_four_finish_under_the_least_budget() -> None:
    left, num_steps = [20, 20], 0
    while left:
        taken, _ = share_budget(left, [], min_budget(8, 8), lookahead=8)
        assert any(taken)
        left = [wanted - size for wanted, size in zip(left, taken, strict=True) if wanted > size]
        num_steps += 1
    assert num_steps <= 4
