"""The simulator holds over seeds, and finds every planted bug."""

from collections import Counter

import pytest

from augury.geometry import KvGroup
from kvcache_svc.core.pool import BlockPool
from scheduler_svc.core.lane import KeyLookahead, LaneConfig
from tests.sim.__main__ import main
from tests.sim.mutants import MAX_SEEDS, MUTANTS
from tests.sim.plan import draw_plan
from tests.sim.planting import Edit, planted
from tests.sim.reuse import Cache
from tests.sim.seeds import first_failure, run_seed
from tests.sim.simulation import simulate

NUM_SEEDS = 120


def test_every_seed_holds_and_between_them_everything_happens() -> None:
    tally = sum((run_seed(seed).tally for seed in range(NUM_SEEDS)), Counter[str]())
    kinds = ("drop", "duplicate", "delay", "worker crash", "disconnect", "kv crash", "idle fence", "refusal")
    elastic = ("drain", "released", "scheduler crash", "scheduler drain", "went on", "left")
    happened = (
        "fence",
        "renewal",
        "stale answer",
        "preemptions",
        "hit tokens",
        "refused hits",
        "drafts",
        "accepted drafts",
    )
    ends = ("stop", "length", "cancelled", "not_finite", "context_length_exceeded", "refused at once")
    assert all(tally[kind] > 0 for kind in (*kinds, *elastic, *happened, *ends)), tally


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str) -> None:
    with planted(MUTANTS[name]):
        assert first_failure(range(MAX_SEEDS)) is not None


def test_one_seed_is_one_run() -> None:
    first, second = list[str](), list[str]()
    simulate(draw_plan(7), first.append)
    simulate(draw_plan(7), second.append)
    assert len(first) > 100
    assert first == second


@pytest.mark.parametrize(("num_shared", "num_hit"), [(14, 8), (15, 8), (16, 12)])
def test_expected_reuse_is_the_reference_engines(num_shared: int, num_hit: int) -> None:
    """mtp_semantics, appendix B: lookahead 4, blocks of 4, a writer of 23 known tokens."""
    cache, writer = Cache([KvGroup(block_size=4, has_drafts=True)], 4, KeyLookahead.AUTO), list(range(23))
    cache.keep(b"", writer, [0])
    reader = [*writer[:num_shared], *([] if num_shared == 14 else [99] * 8)]
    assert cache.look_up(b"", reader).num_tokens == num_hit


FULL = KvGroup(block_size=4)
DRAFTS = KvGroup(block_size=8, window=16, has_drafts=True, num_retained=7)


@pytest.mark.parametrize(
    ("groups", "max_len", "starts"),
    [
        ((DRAFTS,), 17, True),
        ((DRAFTS,), 16, False),
        ((FULL, DRAFTS), 17, True),
        ((FULL, DRAFTS), 16, False),
        ((FULL,), 5, True),
    ],
)
def test_lane_starts_only_where_plain_keys_leave_something_to_hit(
    groups: tuple[KvGroup, ...], max_len: int, starts: bool
) -> None:
    def config(keys: KeyLookahead) -> LaneConfig:
        return LaneConfig(
            pool="worker",
            fingerprint="hashes",
            num_blocks=100,
            groups=groups,
            max_model_len=max_len,
            max_batched_tokens=17,
            max_running=1,
            key_lookahead=keys,
            num_prefill_lookahead=8,
            max_drafts=8,
        )

    config(KeyLookahead.AUTO)
    if starts:
        config(KeyLookahead.OFF)
        return
    with pytest.raises(ValueError, match=r"kv\.key_lookahead is off"):
        config(KeyLookahead.OFF)


def test_failing_seed_is_replayed_with_its_trace_and_a_bad_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    with planted(MUTANTS["growth skips a block"]):
        assert main(["--seed", "0"]) == 1
    assert "python -m tests.sim --seed 0" in capsys.readouterr().out


def test_mutant_of_text_that_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match="once"), planted((Edit(BlockPool, "forget", "no such text", ""),)):
        pass
