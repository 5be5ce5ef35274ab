"""Why a lookup ended short: each admission counts one reason at most."""

from collections.abc import Sequence

import pytest

from augury.geometry import KvGroup
from augury.types import Miss
from scheduler_svc.core import misses
from tests.scheduler.harness import Harness, generation, lane_config


def reasons(lane: Harness, prompt: Sequence[int], salt: bytes = b"") -> dict[Miss, int]:
    """What one more request adds to the counts."""
    before = lane.scheduler.counters.misses.copy()
    lane.submit(generation(prompt, max_tokens=1, salt=salt))
    lane.run()
    return dict(lane.scheduler.counters.misses - before)


def test_nothing_is_missed_where_all_is_hit() -> None:
    lane = Harness()
    assert reasons(lane, range(20)) == {Miss.COLD: 1}
    assert reasons(lane, range(20)) == {}


def test_a_prompt_without_a_whole_block_misses_nothing() -> None:
    assert reasons(Harness(), range(4)) == {}


def test_without_prefix_caching_every_lookup_is_disabled() -> None:
    assert reasons(Harness(lane_config(prefix_caching=False)), range(20)) == {Miss.DISABLED: 1}


def test_an_evicted_prefix_is_told_from_a_cold_one() -> None:
    lane = Harness(lane_config(num_blocks=8))
    reasons(lane, range(20))
    assert reasons(lane, range(50, 75)) == {Miss.COLD: 1}
    assert reasons(lane, range(20)) == {Miss.EVICTED: 1}


def test_a_prefix_that_only_another_salt_has_seen_is_missed_for_the_salt() -> None:
    lane = Harness()
    assert reasons(lane, range(20), b"a") == {Miss.COLD: 1}
    assert reasons(lane, range(20), b"b") == {Miss.SALT: 1}
    assert reasons(lane, range(20), b"b") == {}
    assert reasons(lane, [*range(4), *range(50, 66)], b"b") == {Miss.COLD: 1}
    assert reasons(lane, range(80, 99), b"b") == {Miss.COLD: 1}
    assert reasons(lane, [*range(4), *range(70, 86)], b"a") == {Miss.COLD: 1}


def test_only_the_latest_starts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MAX_STARTS", 2)
    lane = Harness(lane_config(num_blocks=400))
    for n in (0, 100, 200):
        reasons(lane, range(n, n + 20), b"a")
    assert reasons(lane, range(100, 120), b"b") == {Miss.SALT: 1}
    assert reasons(lane, range(20), b"b") == {Miss.COLD: 1}


@pytest.mark.parametrize(
    ("num_prompt", "reason"), [(20, {}), (24, {}), (25, {Miss.LOOKAHEAD: 1}), (28, {Miss.LOOKAHEAD: 1})]
)
def test_a_block_without_its_lookahead_is_missed_for_it(num_prompt: int, reason: dict[Miss, int]) -> None:
    """Blocks of eight tokens and four modules: the third block ends at 24 and is named at 28."""
    lane = Harness(lane_config(block_size=8, lookahead=4, budget=99))
    reasons(lane, range(num_prompt))
    expected = {} if num_prompt in (20, 28) else reason
    assert reasons(lane, range(num_prompt)) == expected


def test_a_window_that_lost_its_blocks_is_the_reason() -> None:
    lane = Harness(lane_config(groups=(KvGroup(block_size=4), KvGroup(block_size=4, window=8))))
    reasons(lane, range(20))
    for proposal in filter(None, lane.proposals):
        for seal in proposal.seals:
            if seal.group == 1:
                lane.kv.pool.forget(seal.key)
    assert reasons(lane, range(20)) == {Miss.WINDOW: 1}


def test_a_hit_cut_to_what_all_groups_have_whole_is_missed_for_the_alignment() -> None:
    lane = Harness(lane_config(groups=(KvGroup(block_size=4), KvGroup(block_size=6))))
    reasons(lane, range(23))
    assert reasons(lane, range(23)) == {Miss.ALIGNMENT: 1}
