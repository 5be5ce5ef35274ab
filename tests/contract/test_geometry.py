"""How many blocks a group needs: the tables of mtp_semantics §3.8 and the bound that must never be exceeded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.geometry import KvGroup, hash_block, max_slots, peak_blocks, scheduler_block


@st.composite
def window_groups(draw: st.DrawFn) -> KvGroup:
    drafts = draw(st.booleans())
    return KvGroup(
        block_size=draw(st.integers(1, 6)),
        window=draw(st.integers(1, 40)),
        has_drafts=drafts,
        num_retained=draw(st.integers(0, 7)) if drafts else 0,
    )


full_groups = st.builds(KvGroup, block_size=st.integers(1, 6), has_drafts=st.booleans())


@pytest.mark.parametrize(
    ("retained", "nulls"),
    [
        (0, {8: 0, 11: 1, 15: 2, 19: 3, 23: 4}),
        (3, {11: 0, 14: 1, 18: 2, 22: 3, 26: 4}),
        (7, {15: 0, 18: 1, 22: 2, 26: 3}),
    ],
)
def test_blocks_that_a_window_of_8_has_passed(retained: int, nulls: dict[int, int]) -> None:
    group = KvGroup(block_size=4, window=8, has_drafts=True, num_retained=retained)
    assert {computed: group.num_skipped(computed) for computed in nulls} == nulls


@pytest.mark.parametrize(
    ("window", "retained", "in_flight", "max_len", "block_size", "cap"),
    [
        (64, 0, 128, 1024, 16, 13),
        (64, 7, 128, 1024, 16, 14),
        (32, 7, 64, 1024, 16, 8),
        (128, 7, 2048, 1 << 20, 16, 138),
        (6, 0, 0, 1024, 4, 3),
        (1024, 0, 1024, 1 << 20, 16, 129),
        (1024, 0, 2048, 1 << 20, 16, 193),
        # The reference says 257 here; a request never has more blocks than its whole length takes.
        (128, 7, 8192, 4096, 16, 256),
    ],
)
def test_the_cap_of_the_reference(
    window: int, retained: int, in_flight: int, max_len: int, block_size: int, cap: int
) -> None:
    group = KvGroup(block_size=block_size, window=window, has_drafts=True, num_retained=retained)
    assert group.peak(max_len, in_flight) == cap


def test_the_cap_counts_the_slots_of_the_drafts() -> None:
    """Chunks 47, 64, 64, 64, 33, 64 with 8 drafts peak at 8 real blocks, where the reference allows for 7."""
    group = KvGroup(block_size=16, window=26, has_drafts=True, num_retained=7)
    assert group.peak(1024, 64) == 7
    assert group.peak(1024, 64 + 8) == 8


@given(group=window_groups(), num_slots=st.integers(1, 200), data=st.data())
def test_real_blocks_never_exceed_the_peak(group: KvGroup, num_slots: int, data: st.DataObject) -> None:
    num_ahead = data.draw(st.integers(1, 40))
    computed = 0
    while computed < num_slots:
        length = group.table_length(num_slots, computed + num_ahead)
        assert length - group.num_skipped(computed) <= group.peak(num_slots, num_ahead)
        computed += data.draw(st.integers(1, num_ahead))


@given(group=window_groups(), computed=st.integers(0, 200))
def test_what_is_skipped_is_never_read_again(group: KvGroup, computed: int) -> None:
    assert group.window is not None
    earliest_query = max(0, computed - group.num_retained)
    earliest_read = max(0, earliest_query - group.window + 1)
    assert group.num_skipped(computed) == earliest_read // group.block_size


@given(groups=st.lists(full_groups | window_groups(), min_size=1, max_size=3), data=st.data())
def test_the_longest_request_fits_and_one_more_slot_does_not(groups: list[KvGroup], data: st.DataObject) -> None:
    num_blocks, num_ahead = data.draw(st.integers(2, 60)), data.draw(st.integers(1, 20))
    limit = data.draw(st.integers(1, 300))
    most = max_slots(groups, num_blocks, num_ahead, limit)
    assert peak_blocks(groups, most, num_ahead) < num_blocks
    assert most == limit or peak_blocks(groups, most + 1, num_ahead) >= num_blocks


def test_blocks_of_different_size() -> None:
    groups = [KvGroup(block_size=6), KvGroup(block_size=4, window=8)]
    assert (scheduler_block(groups), hash_block(groups)) == (12, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_size": 0},
        {"block_size": 4, "window": 0},
        {"block_size": 4, "num_retained": -1, "window": 4},
        {"block_size": 4, "num_retained": 1},
        {"block_size": 4, "window": 4, "num_rebuilt": 3},
        {"block_size": 4, "has_drafts": True, "num_rebuilt": 3},
    ],
)
def test_groups_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="got"):
        KvGroup(**wrong)  # type: ignore[arg-type]
