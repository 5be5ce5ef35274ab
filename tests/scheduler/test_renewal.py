"""The KV service starts again without memory: leases go on as they are, nothing is computed twice, nothing leaks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.geometry import KvGroup
from augury.types import EndReason
from tests.scheduler.harness import Harness, generation, lane_config, shapes, small_lane

WINDOWED = (KvGroup(block_size=4), KvGroup(block_size=4, window=6))


def computed(lane: Harness) -> int:
    return sum(row.num_new for step in lane.steps for row in step.rows)


@pytest.mark.parametrize("lost", ["nothing", "proposal", "grant"])
@pytest.mark.parametrize("groups", [(KvGroup(block_size=4),), WINDOWED])
@pytest.mark.parametrize("num_iterations", range(1, 9))
def test_running_requests_keep_their_blocks(num_iterations: int, groups: tuple[KvGroup, ...], lost: str) -> None:
    lane = Harness(lane_config(groups=groups, budget=12))
    handles = [lane.submit(generation(range(n, n + 19), max_tokens=9)) for n in (0, 50)]
    for _ in range(num_iterations):
        lane.iterate()
    if lost == "proposal":
        lane.scheduler.propose()
    if lost == "grant":
        lane.propose()
    lane.renew()
    lane.run()
    for handle in handles:
        lane.assert_told(handle)
    assert computed(lane) == 2 * (19 + 9 - 1)
    assert sum(len(step.fresh) for step in lane.steps) == 2
    assert {step.epoch for step in lane.steps} == {1}
    lane.assert_whole()


def test_proposals_are_numbered_from_one_again() -> None:
    lane = Harness()
    lane.submit(generation(range(9), max_tokens=9))
    lane.iterate()
    lane.iterate()
    lane.renew()
    lane.run()
    seqs = [proposal.seq for proposal in lane.proposals if proposal]
    assert seqs == [1, 2, 1, 2, 3]


def hit_after_renewal(lane: Harness, prompt: list[int]) -> int:
    lane.renew()
    handle = lane.submit(generation(prompt, max_tokens=1))
    lane.run()
    return lane.stories[handle].num_cached


def test_what_was_cached_is_hit_still() -> None:
    lane = Harness()
    lane.submit(generation(range(20), max_tokens=1))
    lane.run()
    assert hit_after_renewal(lane, list(range(20))) == 16


def test_the_seals_of_a_lost_proposal_are_not_lost() -> None:
    """Its request has ended, and the worker does not have the tags yet: the step that was to bring them never left."""
    lane = Harness()
    lane.submit(generation(range(20), max_tokens=1))
    lane.iterate()
    lane.scheduler.propose()
    assert not lane.worker.tags
    assert hit_after_renewal(lane, list(range(20))) == 16
    assert lane.scheduler.counters.num_refused == 0
    lane.assert_whole()


def test_the_seals_of_a_running_request_are_hit() -> None:
    lane = Harness()
    lane.submit(generation(range(20), max_tokens=30))
    lane.iterate()
    lane.scheduler.propose()
    lane.renew()
    second = lane.submit(generation(range(20), max_tokens=1))
    lane.run()
    assert lane.stories[second].num_cached == 16
    assert lane.scheduler.counters.num_refused == 0


def test_a_tag_of_a_block_that_is_leased_is_not_believed() -> None:
    """The block may have been granted again, and the worker be told with the next step only."""
    lane = Harness()
    lane.submit(generation(range(9)))
    lane.iterate()
    (table,) = lane.scheduler.running.items[0].tables
    _, content = lane.scheduler.renew([(table.blocks[-1], b"k" * 16), (63, b"k" * 16)])
    assert content == [(63, b"k" * 16)]


@pytest.mark.parametrize("moment", ["before", "lost", "after"])
def test_a_cancelled_request_is_not_taken_over_or_given_back(moment: str) -> None:
    lane = Harness()
    neighbour, gone = lane.submit(generation(range(9), max_tokens=9)), lane.submit(generation(range(30, 39)))
    lane.iterate()
    if moment != "after":
        lane.cancel(gone)
    if moment == "lost":
        lane.scheduler.propose()
    lane.renew()
    assert (gone in lane.kv.leases.tables) == (moment == "after")
    if moment == "after":
        lane.cancel(gone)
    lane.run()
    lane.assert_told(neighbour)
    lane.assert_told(gone, EndReason.CANCELLED)
    lane.assert_whole()


def test_a_cancel_while_the_pool_is_being_renewed_is_given_back() -> None:
    lane = Harness()
    gone = lane.submit(generation(range(9)))
    lane.iterate()
    holdings, content = lane.scheduler.renew(list(lane.worker.tags.items()))
    lane.cancel(gone)
    assert [holding.lease for holding in holdings] == [gone]
    assert not content
    proposal = lane.scheduler.propose()
    assert proposal is not None
    assert proposal.releases == (gone,)


def test_forgotten_keys_are_forgotten_after_all() -> None:
    lane = Harness()
    lane.submit(generation(range(20), max_tokens=4))
    lane.run()
    tags = dict(lane.worker.tags)
    lane.worker.tags.clear()
    lane.submit(generation(range(20), max_tokens=1))
    lane.iterate()
    lost = lane.scheduler.propose()
    assert lost is not None
    assert len(lost.forgotten) == 4
    lane.worker.tags.update(tags)
    lane.renew()
    again = lane.scheduler.propose()
    assert again is not None
    assert again.forgotten == lost.forgotten


def test_a_tail_that_is_not_exact_is_taken_over_unsealed() -> None:
    groups = (KvGroup(block_size=4), KvGroup(block_size=4, window=5, has_drafts=True, num_retained=1, num_rebuilt=8))
    lane = Harness(lane_config(groups=groups, lookahead=2, max_drafts=2, num_blocks=80))
    lane.submit(generation(range(40), max_tokens=1))
    lane.run()
    for proposal in filter(None, lane.proposals):
        for seal in proposal.seals:
            if seal.group == 1:
                lane.kv.pool.forget(seal.key)
    lane.submit(generation(range(40), max_tokens=9))
    lane.iterate()
    (holding,), _ = lane.scheduler.renew(list(lane.worker.tags.items()))
    assert [(seal.group, seal.index) for seal in holding.seals] == [(0, index) for index in range(10)]
    assert holding.blocks[1][:7] == (0,) * 7
    assert all(holding.blocks[1][7:])


lanes = st.builds(
    small_lane,
    shapes=st.lists(shapes, min_size=1, max_size=3),
    lookahead=st.sampled_from([0, 1, 3]),
    max_drafts=st.integers(0, 2),
    extra=st.integers(0, 12),
    num_blocks=st.integers(150, 200),
)


@given(
    config=lanes, pauses=st.lists(st.integers(0, 6), min_size=1, max_size=4), prompt=st.integers(1, 30), data=st.data()
)
def test_any_number_of_renewals_leaves_texts_and_blocks_whole(
    config: Any, pauses: list[int], prompt: int, data: st.DataObject
) -> None:
    lane = Harness(config)
    for n in range(3):
        lane.submit(generation(range(n // 2, n // 2 + prompt), max_tokens=9))
    for pause in pauses:
        for _ in range(pause):
            lane.iterate()
        if data.draw(st.booleans()):
            lane.propose()
        lane.renew()
    lane.run()
    for handle in lane.stories:
        lane.assert_told(handle)
    assert lane.scheduler.counters.num_refused == 0
    lane.assert_whole()
