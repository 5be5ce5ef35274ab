"""`augury kv inspect` shows what a running KV service holds."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.convert.common import group_to_wire
from augury.geometry import KvGroup
from augury.v1 import kvcache_pb2
from deploy import cli, kv
from tests.kvcache.kv_client import serving
from tests.kvcache.registries import key

words = st.text("abc 0123456789.%-", min_size=1, max_size=12).map(str.strip).filter(bool)


@given(rows=st.lists(st.lists(words, min_size=3, max_size=3), max_size=5))
def test_every_cell_of_a_table_stands_in_its_column(rows: list[list[str]]) -> None:
    headings = ("first", "second one", "third")
    lines = kv.table(headings, rows).split("\n")
    width = max(map(len, lines))
    for index, row in enumerate([list(headings), *rows]):
        start = 0
        for column, cell in enumerate(row):
            size = max(len(each[column]) for each in [list(headings), *rows])
            assert lines[index].ljust(width)[start : start + size].strip() == cell
            start += size + 2


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0042, "4.2 ms"), (1, "1 s"), (90, "1.5 min"), (14400, "4 h"), (86400, "1 d")]
)
def test_durations_have_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert kv._duration(seconds) == shown


async def test_a_running_service_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(None, "127.0.0.1:0") as client:
        assert await run("--address", client.address) == 0
        assert capsys.readouterr().out == "registry: memory\n\nno pools are open\n"

        await client.open()
        await client.fill(1, key(1), key(2))
        await client.hit(key(1), key(2))
        await client.hit(key(1), key(9))
        for lease in range(2, 9):
            await client.fill(lease, key(100 + lease))
            await client.step(releases=[lease])
        assert await run("--set", f"kvcache.address={client.address}", "--prefixes", "1") == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["worker-0", "11", "1", "1", "2", "7", "1", "2", "75.0", "%", "0", "0"] in shown
    assert ["worker-0", "0", "full", "4", "1", "2", "0"] in shown
    assert ["worker-0:", "misses:", "cold", "1"] in shown
    assert [key(2).hex(), "8", "1"] in [row[1:] for row in shown]
    assert key(1).hex() not in str(shown), "one prefix was asked for"


def test_groups_and_ages_are_told() -> None:
    windows = [KvGroup(block_size=16), KvGroup(block_size=32, window=512, has_drafts=True)]
    groups = [
        kvcache_pb2.GroupState(group=group_to_wire(group), num_open=1, num_sealed=2, num_held=7) for group in windows
    ]
    ages = kvcache_pb2.Histogram(bounds=[1, 60], counts=[2, 0, 1], total=90)
    pool = kvcache_pb2.PoolState(pool="w", num_blocks=9, groups=groups, lifetime=ages, idle=ages)
    shown = kv.render(kvcache_pb2.Inspection(pools=[pool], registry="redis (degraded)"))
    lines = [line.split() for line in shown.splitlines()]
    assert ["registry:", "redis", "(degraded)"] in lines
    assert ["w", "0", "full", "16", "1", "2", "4"] in lines
    assert ["w", "1", "window", "512,", "drafts", "32", "1", "2", "4"] in lines
    assert "≤ 1 s: 2, > 1 min: 1 (mean 30 s)" in shown


async def test_a_service_that_is_not_there_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("--address", "127.0.0.1:1") == 1
    error = capsys.readouterr().err
    assert error.startswith("augury kv inspect: 127.0.0.1:1: UNAVAILABLE") and error.count("\n") == 1


async def run(*options: str) -> int:
    return await asyncio.to_thread(cli.main, ["kv", "inspect", *options])
