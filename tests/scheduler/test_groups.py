"""Several KV groups in one lane: what a hit gives, what it proves, which blocks a window gives back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.geometry import NULL_BLOCK, KvGroup, scheduler_block
from augury.types import NewRequest
from scheduler_svc.core.lane import KeyLookahead, LaneConfig
from scheduler_svc.core.request import Request
from tests.scheduler.harness import Harness, Shape, continuation, generation, lane_config, shapes, small_lane

AUTO, OFF = KeyLookahead.AUTO, KeyLookahead.OFF

FULL_AND_FULL = (KvGroup(block_size=16), KvGroup(block_size=4, has_drafts=True))
FULL_AND_WINDOW = (KvGroup(block_size=32), KvGroup(block_size=4, window=8, num_retained=7, has_drafts=True))
REBUILT = (
    KvGroup(block_size=4),
    KvGroup(block_size=4, window=5, has_drafts=True, num_retained=1, num_rebuilt=8),
)
"""Two modules whose window is five: recomputed rows are exact from the ninth on."""


def hybrid(groups: Sequence[KvGroup], mode: KeyLookahead = AUTO, **fields: Any) -> Harness:
    config = lane_config(
        groups=groups, num_blocks=400, budget=4096, lookahead=8, max_drafts=8, key_lookahead=mode, **fields
    )
    return Harness(config)


def hit_of(lane: Harness, prompt: Sequence[int], max_tokens: int = 1) -> int:
    """Runs ``prompt`` and returns how many of its tokens were hit."""
    handle = lane.submit(generation(prompt, max_tokens=max_tokens))
    lane.run()
    lane.assert_told(handle)
    return lane.stories[handle].num_cached


def last_fresh(lane: Harness) -> NewRequest:
    return [new for step in lane.steps for new in step.fresh][-1]


@pytest.mark.parametrize("groups", [FULL_AND_FULL, FULL_AND_WINDOW])
@pytest.mark.parametrize("mode", KeyLookahead)
def test_no_hit_of_a_hybrid_is_proven_by_less_than_the_lookahead(groups: Sequence[KvGroup], mode: KeyLookahead) -> None:
    """Table 3.6, where the reference counts 28 and 12 violating hits: a group gives up whole blocks of its own."""
    unit = scheduler_block(groups)
    writer = list(range(100))
    hits = {}
    for num_shared in range(1, 100):
        lane = hybrid(groups, mode)
        hit_of(lane, writer)
        hits[num_shared] = hit_of(lane, [*writer[:num_shared], *range(500, 560)])
    assert all(hit == 0 or hit + 8 <= num_shared for num_shared, hit in hits.items())
    assert hits == {num_shared: max(0, (num_shared - 8) // unit * unit) for num_shared in hits}


def test_plain_groups_are_sealed_once_computed_and_draft_groups_by_the_frontier() -> None:
    """§3.5: target KV is final once verified, the KV of eight modules waits for eight tokens."""
    lane = Harness(lane_config(groups=(KvGroup(block_size=4), KvGroup(block_size=4, has_drafts=True)), lookahead=8))
    lane.submit(generation(range(20), max_tokens=3))
    lane.iterate()
    lane.propose()
    proposal = lane.proposals[-1]
    assert proposal is not None
    sealed = [[seal.index for seal in proposal.seals if seal.group == group] for group in range(2)]
    assert sealed == [[0, 1, 2, 3, 4], [0, 1, 2]]


def test_a_worker_that_lags_behind_delays_the_seals_of_draft_groups_alone() -> None:
    lane = Harness(lane_config(groups=(KvGroup(block_size=4), KvGroup(block_size=4, has_drafts=True)), lookahead=2))
    lane.submit(generation(range(20), max_tokens=3))
    step = lane.begin()
    assert step is not None
    lane.scheduler.apply(replace(lane.worker.execute(step), num_final=(7,)))
    proposal = lane.scheduler.propose()
    assert proposal is not None
    assert [(seal.group, seal.index) for seal in proposal.seals] == [*((0, index) for index in range(5)), (1, 0)]


def test_groups_have_names_of_their_own() -> None:
    lane = Harness(lane_config(groups=(KvGroup(block_size=4), KvGroup(block_size=4))))
    lane.submit(generation(range(20), max_tokens=1))
    lane.run()
    keys = [seal.key for proposal in lane.proposals if proposal for seal in proposal.seals]
    assert len(keys) == len(set(keys)) == 10


@pytest.mark.parametrize(
    ("lookahead", "sizes", "margins"), [(8, (16, 4), (1, 2)), (8, (3, 8), (3, 1)), (1, (4, 2), (1, 1))]
)
def test_a_group_gives_up_blocks_of_its_own_size(
    lookahead: int, sizes: tuple[int, int], margins: tuple[int, int]
) -> None:
    groups = tuple(KvGroup(block_size=size, has_drafts=True) for size in sizes)
    config = lane_config(groups=groups, lookahead=lookahead, key_lookahead=OFF)
    assert tuple(map(config.key_margin, groups)) == margins


def test_a_group_that_could_never_be_hit_is_refused_at_the_start_by_its_number() -> None:
    def start(max_model_len: int, **fields: Any) -> LaneConfig:
        return lane_config(groups=FULL_AND_FULL, lookahead=8, max_model_len=max_model_len, **fields)

    assert start(25, key_lookahead=OFF).max_len == 25
    for fields in ({"key_lookahead": AUTO}, {"key_lookahead": OFF, "prefix_caching": False}):
        assert start(24, **fields).max_len == 24
    with pytest.raises(ValueError, match=r"kv\.key_lookahead .* group 1"):
        start(24, key_lookahead=OFF)


@pytest.mark.parametrize(("num_prompt", "hit"), [(40, 28), (41, 28), (42, 32)])
def test_where_only_the_drafts_miss_no_more_is_recomputed_than_they_need(num_prompt: int, hit: int) -> None:
    """The others' hit leaves the lookahead to compute too."""
    lane = Harness(lane_config(groups=REBUILT, lookahead=2, max_drafts=2, num_blocks=80))
    prompt = list(range(num_prompt))
    hit_of(lane, prompt)
    forget_drafts(lane)
    lane.proposals.clear()
    assert hit_of(lane, prompt, max_tokens=4) == hit
    fresh, num_hit = last_fresh(lane), hit // 4
    assert fresh.blocks[1][:num_hit] == (NULL_BLOCK,) * num_hit
    assert {block for block, _ in fresh.hits} == set(fresh.blocks[0][:num_hit])
    sealed = [(seal.group, seal.index) for proposal in lane.proposals if proposal for seal in proposal.seals]
    assert min(sealed) == (0, num_hit)
    assert all(index >= num_hit + 8 // 4 for group, index in sealed if group == 1)


def forget_drafts(lane: Harness) -> None:
    """Whatever blocks of group 1 are cached are lost."""
    for proposal in filter(None, lane.proposals):
        for seal in proposal.seals:
            if seal.group == 1:
                lane.kv.pool.forget(seal.key)


def test_a_window_holds_no_more_than_its_peak_and_reads_nothing_it_gave_back() -> None:
    """Table 3.8 end to end: target full 16 and window 32, budget 64, prompt 300; the drafts' slots count."""
    groups = (KvGroup(block_size=16), KvGroup(block_size=16, window=32, num_retained=7, has_drafts=True))
    lane = Harness(lane_config(groups=groups, lookahead=8, max_drafts=8, budget=64, num_blocks=60))
    lane.submit(generation(range(300), max_tokens=40))
    held = []
    while (step := lane.begin()) is not None:
        (tables,) = lane.kv.leases.tables.values()
        held.append(sum(block != NULL_BLOCK for block in tables[1]))
        lane.finish(step)
    assert held[:5] == [5, 8, 8, 8, 7]
    assert max(held) <= groups[1].peak(348, 64 + 8)
    lane.assert_whole()


lanes = st.builds(
    small_lane,
    shapes=st.lists(shapes, min_size=1, max_size=3),
    lookahead=st.sampled_from([0, 1, 2, 4]),
    max_drafts=st.integers(0, 2),
    extra=st.integers(0, 12),
    num_blocks=st.just(400),
    key_lookahead=st.sampled_from(KeyLookahead),
)


@given(config=lanes, num_prompt=st.integers(1, 60), num_again=st.integers(0, 60))
def test_lease_and_scheduler_agree_on_every_table_and_no_lease_exceeds_its_peak(
    config: LaneConfig, num_prompt: int, num_again: int
) -> None:
    lane = Harness(config)
    handle = lane.submit(generation(range(num_prompt), max_tokens=12))
    for prompt in ([], [*range(min(num_again, num_prompt)), 999]):
        if prompt:
            handle = lane.submit(generation(prompt, max_tokens=12))
        while (step := lane.begin()) is not None:
            (request,) = lane.scheduler.running.items
            assert_agreed(lane, request)
            lane.finish(step)
        lane.assert_told(handle)
    lane.assert_whole()


def assert_agreed(lane: Harness, request: Request) -> None:
    slots = len(request.tokens) + lane.config.max_drafts
    ahead = min(len(request.tokens), lane.config.max_batched_tokens) + lane.config.max_drafts
    for group, table, leased in zip(
        lane.config.groups, request.tables, lane.kv.leases.tables[request.handle], strict=True
    ):
        assert list(table.live) == leased
        assert table.num_held <= group.peak(slots, ahead)


@given(config=lanes, num_prompt=st.integers(20, 60), num_shared=st.integers(0, 60))
def test_a_hit_is_whole_in_every_group_and_proves_its_lookahead(
    config: LaneConfig, num_prompt: int, num_shared: int
) -> None:
    lane = Harness(config)
    hit_of(lane, range(num_prompt))
    num_shared = min(num_shared, num_prompt)
    text = [*range(num_prompt), *continuation(range(num_prompt), 1)]
    hit = hit_of(lane, [*text[:num_shared], *range(700, 740)])
    reach = max((config.num_prefill_lookahead for group in config.groups if group.has_drafts), default=0)
    assert hit % scheduler_block(config.groups) == 0
    assert hit <= max(num_shared - reach, 0)


def test_a_shape_with_drafts_behind_a_window_is_among_those_drawn() -> None:
    mixed: list[Shape] = [(4, None, False), (2, 5, True)]
    groups = small_lane(shapes=mixed, lookahead=2).groups
    assert groups[1] == KvGroup(block_size=2, window=5, has_drafts=True, num_retained=1, num_rebuilt=8)
