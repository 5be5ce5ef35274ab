"""Window groups by the numbers of mtp_semantics §3.3, §3.8 and §5.4, and the bound on real blocks by property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.geometry import KvGroup, max_slots, peak_blocks
from augury.types import Reserve
from kvcache_svc.core.coordinator import Coordinator
from kvcache_svc.core.groups import SlidingWindow
from tests.kvcache.machine import kv_groups
from tests.kvcache.prompts import Prompter, granted, lookup, names, proposal, spec


def window(size: int, width: int, num_retained: int = 0) -> KvGroup:
    return KvGroup(block_size=size, window=width, has_drafts=num_retained > 0, num_retained=num_retained)


@pytest.mark.parametrize(
    ("size", "width", "num_retained", "need"),
    [
        *[(2, 4, 0, 2), (4, 8, 0, 2), (16, 16, 0, 1), (16, 64, 0, 4), (16, 1, 0, 0)],
        *[(2, 4, 1, 2), (4, 8, 7, 4), (16, 16, 7, 2), (16, 64, 7, 5), (16, 1, 7, 1)],
    ],
)
def test_a_hit_needs_the_blocks_that_the_window_and_its_tail_reach(
    size: int, width: int, num_retained: int, need: int
) -> None:
    """§3.3 without drop; rows that are repaired, up to E back, need their whole window too."""
    keys = [bytes([n]) for n in range(12)]
    for num_found in range(13):
        index = {key: n + 1 for n, key in enumerate(keys) if n >= 12 - num_found}
        found = SlidingWindow(window(size, width, num_retained), size, keys, index.get)
        assert (found.longest(12 * size) == 12 * size) == (num_found >= need)
        if num_found >= need:
            real = list(range(13 - need, 13))
            assert found.blocks(12 * size) == [0] * (12 - need) + real


@pytest.mark.parametrize(
    ("cached", "num_blocks"),
    [
        *[("0000000000", 0), ("1", 1), ("10", 1), ("11", 2), ("110", 2), ("111", 3), ("1110", 3)],
        *[("110100110111", 12), ("11010011000", 8), ("110100110001", 8)],
    ],
)
def test_the_search_goes_from_the_right_and_takes_a_run_that_touches_position_0(cached: str, num_blocks: int) -> None:
    """§5.4, B 2, w 4: all but the last two are null."""
    keys = [bytes([n]) for n in range(len(cached))]
    index = {key: n + 1 for n, key in enumerate(keys) if cached[n] == "1"}
    found = SlidingWindow(window(2, 4), 2, keys, index.get)
    assert found.longest(100) == 2 * num_blocks
    real = list(range(1, num_blocks + 1))[-2:]
    assert found.blocks(2 * num_blocks) == [0] * (num_blocks - len(real)) + real


@given(
    cached=st.lists(st.booleans(), max_size=20),
    size=st.integers(1, 3),
    width=st.integers(1, 12),
    stride=st.integers(1, 3),
    limits=st.lists(st.integers(0, 60), min_size=1, max_size=4),
)
def test_a_search_that_is_shortened_looks_every_key_up_once_and_any_other_is_as_a_fresh_one(
    cached: list[bool], size: int, width: int, stride: int, limits: list[int]
) -> None:
    keys = [bytes([n]) for n in range(len(cached))]
    index = {key: n + 1 for n, key in enumerate(keys) if cached[n]}
    asked: list[bytes] = []

    def find(key: bytes) -> int | None:
        asked.append(key)
        return index.get(key)

    search = SlidingWindow(window(size, width), size * stride, keys, find)
    longest = search.longest(limits[0])
    for limit in limits[1:]:
        longest = search.longest(min(limit, longest))
    assert len(set(asked)) == len(asked)
    for limit in limits:
        fresh = SlidingWindow(window(size, width), size * stride, keys, index.get)
        assert search.longest(limit) == fresh.longest(limit)
        assert fresh.longest(limit) % (size * stride) == 0


@pytest.mark.parametrize(
    ("num_retained", "skipped"),
    [
        (0, {8: (1, 0), 11: (4, 1), 15: (8, 2), 19: (12, 3), 23: (16, 4)}),
        (3, {11: (1, 0), 14: (4, 1), 18: (8, 2), 22: (12, 3), 26: (16, 4)}),
        (7, {15: (1, 0), 18: (4, 1), 22: (8, 2), 26: (12, 3)}),
    ],
)
def test_skipped_tokens_and_null_blocks(num_retained: int, skipped: dict[int, tuple[int, int]]) -> None:
    """§3.8, B 4, w 8."""
    for num_computed, (num_tokens, num_blocks) in skipped.items():
        assert window(1, 8, num_retained).num_skipped(num_computed) == num_tokens
        assert window(4, 8, num_retained).num_skipped(num_computed) == num_blocks


@pytest.mark.parametrize(
    ("width", "num_retained", "num_ahead", "num_slots", "size", "peak"),
    [
        *[(64, 0, 128, 1024, 16, 13), (64, 7, 128, 1024, 16, 14), (32, 7, 64, 1024, 16, 8)],
        *[(128, 7, 2048, 4096, 16, 138), (6, 0, 0, 1024, 4, 3)],
        *[(1024, 0, 1024, 4096, 16, 129), (1024, 0, 2048, 4096, 16, 193)],
        # the reference says 257 of a table that has 256 entries
        (128, 7, 8192, 4096, 16, 256),
        # N 8 drafts may be written too, which the reference forgets: it says 7 and holds 8
        *[(26, 7, 64, 1024, 16, 7), (26, 7, 64 + 8, 1024, 16, 8), (32, 7, 64 + 8, 1024, 16, 8)],
    ],
)
def test_the_peak_of_a_window_group(
    width: int, num_retained: int, num_ahead: int, num_slots: int, size: int, peak: int
) -> None:
    """§3.8 and §5.4; ``num_ahead`` counts the drafts' slots."""
    assert window(size, width, num_retained).peak(num_slots, num_ahead) == peak


def test_a_pool_sized_for_the_longest_prompt_admits_shorter_ones_with_what_their_windows_need() -> None:
    """§5.4: 32 + 13 blocks rather than 64 for a prompt of 512 tokens."""
    groups = (KvGroup(block_size=16), window(16, 64))
    assert peak_blocks(groups, 512, 128) == 45
    assert max_slots(groups, 64 + 13 + 1, 128, 100_000) == 1024


def real_blocks(kv: Coordinator, lease: int, group: int) -> int:
    return sum(block != 0 for block in kv.leases.tables[lease][group])


@pytest.mark.parametrize(
    ("width", "num_drafts", "num_retained", "chunks", "held"),
    [
        (32, 0, 0, [64, 64, 64, 64, 44], [4, 6, 6, 6, 5]),
        (32, 8, 7, [64, 64, 64, 64, 44], [5, 8, 8, 8, 7]),
        # the chunks whose peak of 8 is above the reference's cap of 7
        (26, 8, 7, [47, 64, 64, 64, 33, 64], [4, 8, 8, 8, 6, 7]),
    ],
)
def test_blocks_held_step_by_step(
    width: int, num_drafts: int, num_retained: int, chunks: list[int], held: list[int]
) -> None:
    """§3.8, target full 16 and a window group of blocks of 16."""
    groups = (KvGroup(block_size=16), window(16, width, num_retained))
    kv = Coordinator(spec(*groups, num_blocks=100))
    num_slots, computed, seen = sum(chunks) + num_drafts, 0, []
    for seq, chunk in enumerate(chunks, 1):
        wanted = Reserve(lease=1, num_slots=num_slots, num_ahead=chunk + num_drafts, num_computed=computed)
        kv.step(proposal(seq, [wanted]))
        kv.check()
        computed += chunk
        seen.append(real_blocks(kv, 1, 1))
    assert seen == held
    assert max(seen) <= groups[1].peak(num_slots, 64 + num_drafts)


def test_blocks_that_the_window_has_passed_are_given_back_rightmost_first() -> None:
    """§5.4, B 2, w 4, 11 blocks."""
    group = window(2, 4)
    kv = Prompter(group, num_blocks=12)
    kv.admit(1, range(22))
    kv.seal(1, range(22), 22)
    table = kv.kv.leases.tables[1][0]
    nulls = []
    for computed in (0, 4, 5, 6, 7, 11):
        kv.step([Reserve(lease=1, num_slots=22, num_ahead=22, num_computed=computed)])
        nulls.append(table.count(0))
    assert nulls == [0, 0, 1, 1, 2, 4]
    assert granted(kv.step([Reserve(lease=2, num_slots=8, num_ahead=8)]))[0].blocks == ((1, 2, 4, 3),)


@pytest.mark.parametrize(("width", "num_taken"), [(64, 20), (11, 15)])
def test_idle_hit_blocks_count_against_the_pool_and_null_blocks_do_not(width: int, num_taken: int) -> None:
    """§5.4, 20 blocks of slots: 10 hits take 20 blocks, 5 hits behind 5 nulls take 15."""
    kv = Prompter(window(2, width), num_blocks=50)
    kv.admit(1, range(20))
    kv.seal(1, range(20), 20)
    kv.release(1)
    before = kv.kv.pool.num_available
    keys = names(range(20), kv.groups)
    wanted = Reserve(lease=2, num_slots=40, num_ahead=20, keys=keys)
    assert granted(kv.step([wanted]))[0].num_computed == 20
    assert before - kv.kv.pool.num_available == num_taken


def test_an_idle_hit_block_is_not_counted_twice() -> None:
    """§5.4: 4 slots, B 2, one idle hit: two blocks needed, one of them allocated."""
    kv = Prompter(window(2, 4), num_blocks=3)
    kv.admit(1, range(2))
    kv.seal(1, range(2), 2)
    kv.release(1)
    wanted = Reserve(lease=2, num_slots=4, num_ahead=2, keys=names(range(2), kv.groups))
    assert granted(kv.step([wanted]))[0].blocks == ((1, 2),)
    assert kv.kv.pool.num_available == 0


def test_nothing_is_freed_for_tokens_that_are_still_in_flight() -> None:
    """§5.4, w 16, B 16, a prompt of 100 tokens: no null block while it is computed, 5 behind it."""
    kv = Prompter(window(16, 16))
    kv.admit(1, range(100))
    for computed, num_null in ((0, 0), (100, 5)):
        kv.step([Reserve(lease=1, num_slots=101, num_ahead=101, num_computed=computed)])
        assert kv.kv.leases.tables[1][0].count(0) == num_null


def test_a_growth_that_is_denied_still_gives_back_what_the_window_has_passed() -> None:
    kv = Prompter(window(2, 4), num_blocks=5)
    kv.admit(1, range(8))
    assert kv.step([Reserve(lease=1, num_slots=20, num_ahead=12, num_computed=8)]).reserves == (None,)
    assert kv.kv.leases.tables[1] == [[0, 0, 3, 4]]
    assert kv.kv.pool.num_available == 2


@given(
    groups=kv_groups(),
    num_prompt=st.integers(1, 40),
    num_hit=st.integers(0, 40),
    budget=st.integers(1, 12),
    num_drafts=st.integers(0, 4),
    data=st.data(),
)
def test_real_blocks_never_exceed_the_peak_and_what_is_read_or_written_is_there(
    groups: tuple[KvGroup, ...], num_prompt: int, num_hit: int, budget: int, num_drafts: int, data: st.DataObject
) -> None:
    """A request alone in a pool of exactly its peak is denied nothing, whatever its chunks and accepted drafts."""
    num_emitted = data.draw(st.integers(0, 12))
    num_slots = num_prompt + num_emitted + num_drafts
    num_blocks = peak_blocks(groups, num_slots, budget + num_drafts) + 1
    cached = [key for keys in lookup(range(min(num_hit, num_prompt)), groups) for key in keys]
    content = {key: n for n, key in enumerate(data.draw(st.permutations(cached)), 1)}
    kv = Coordinator(spec(*groups, num_blocks=max(num_blocks, 2)), content)
    computed, known, seq = 0, num_prompt, 0
    while computed < num_prompt + num_emitted:
        chunk = data.draw(st.integers(1, min(budget, known - computed)))
        ahead = min(budget, known - computed) + num_drafts
        keys = () if seq else lookup(range(num_prompt), groups)
        seq += 1
        wanted = Reserve(lease=1, num_slots=known + num_drafts, num_ahead=ahead, num_computed=computed, keys=keys)
        answer = granted(kv.step(proposal(seq, [wanted])))[0]
        kv.check()
        computed = max(computed, answer.num_computed)
        chunk = min(chunk, known - computed)
        for index, group in enumerate(groups):
            assert real_blocks(kv, 1, index) <= group.peak(known + num_drafts, budget + num_drafts)
            reads = max(0, computed - group.num_retained - (group.window or num_slots) + 1)
            if seq == 1 and group.num_rebuilt is not None:
                reads = computed
            if group.num_rebuilt is None or seq == 1:
                places = range(reads // group.block_size, -(-(computed + chunk + num_drafts) // group.block_size))
                assert all(kv.leases.tables[1][index][place] for place in places)
        computed += chunk
        if computed == known:
            accepted = data.draw(st.integers(0, num_drafts))
            known = min(known + 1 + accepted, num_prompt + num_emitted)
            computed = max(computed, min(computed + accepted, known - 1))
