"""The load benchmark against a server whose answers are known."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.bench.app import BENCHMARKS, main
from tests.bench.sse_server import SseServer


async def run(server: SseServer, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "report.json"
    small = ["--input", "20", "--output", "5", "--concurrency", "1,3", "--json", str(file)]
    async with server.running():
        code = await asyncio.to_thread(main, ["serve", "--url", server.url, *small, *options])
    return code, json.loads(file.read_text())


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_each_level_reports_every_request_and_token(tmp_path: Path, api: str) -> None:
    server = SseServer()
    code, report = await run(server, tmp_path, "--api", api, "--requests", "6")
    assert code == 0
    for level, concurrency in zip(report["levels"], [1, 3], strict=True):
        assert (level["concurrency"], level["num_requests"], level["errors"]) == (concurrency, 6, {})
        assert (level["num_output_tokens"], level["num_prompt_tokens"]) == (6 * 10, 6 * 7)
        assert level["output_tokens_per_s"] == pytest.approx(60 / level["wall_s"])
        assert level["cpu_ms_per_output_token"] is None


async def test_the_loop_is_closed_and_full(tmp_path: Path) -> None:
    server = SseServer(gap_s=0.005)
    await run(server, tmp_path, "--concurrency", "4", "--requests", "12")
    assert server.most_open == 4
    assert len(server.bodies) == 1 + 12


async def test_every_level_gets_prompts_of_its_own_that_share_their_beginning(tmp_path: Path) -> None:
    server = SseServer()
    await run(server, tmp_path, "--shared", "0.5", "--api", "completions")
    prompts = [body["prompt"].split() for body in server.bodies[1:]]
    assert len(prompts) == 4 * 1 + 4 * 3
    assert len({tuple(words) for words in prompts}) == len(prompts)
    assert len({tuple(words[:10]) for words in prompts}) == 1


async def test_times_are_at_least_what_the_server_waited(tmp_path: Path) -> None:
    _, report = await run(SseServer(gap_s=0.02, with_usage=False), tmp_path)
    for level in report["levels"]:
        assert level["ttft_ms"]["p50"] >= 20
        assert level["tpot_ms"]["p50"] >= 19


async def test_without_usage_pieces_of_text_are_counted(tmp_path: Path) -> None:
    _, report = await run(SseServer(with_usage=False), tmp_path, "--requests", "2")
    assert [level["num_output_tokens"] for level in report["levels"]] == [10, 10]
    assert [level["num_prompt_tokens"] for level in report["levels"]] == [None, None]


@pytest.mark.parametrize("known", [True, False])
async def test_ignore_eos_is_sent_only_where_it_is_taken(tmp_path: Path, known: bool) -> None:
    server = SseServer(knows_ignore_eos=known)
    code, report = await run(server, tmp_path)
    assert code == 0 and [level["errors"] for level in report["levels"]] == [{}, {}]
    assert all(body.get("ignore_eos", False) is known for body in server.bodies)
    assert (report["ask"]["model"], report["ask"]["ignore_eos"]) == ("tiny", known)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("overloaded", "HTTP 503"),
        ("error frame", "error frame"),
        ("malformed", "malformed frame"),
        ("cut", "stream cut short"),
    ],
)
async def test_a_failed_request_is_counted_and_never_measured(tmp_path: Path, behaviour: str, reason: str) -> None:
    code, report = await run(SseServer(behaviour=behaviour), tmp_path, "--requests", "3")
    assert code == 1
    for level in report["levels"]:
        assert (level["errors"], level["num_output_tokens"], level["ttft_ms"]) == ({reason: 3}, 0, None)


async def test_the_table_shows_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = await run(SseServer(), tmp_path, "--requests", "3")
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["streams", "requests", "failed", "tok/s"]
    for row, level in zip(rows, report["levels"], strict=True):
        assert row.split()[:4] == [str(level["concurrency"]), "3", "0", f"{level['output_tokens_per_s']:.1f}"]


def test_an_absent_server_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--url", "http://127.0.0.1:1"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("option", ["--concurrency=0", "--shared=1.5", "--input=0", "--output=-1"])
def test_a_wrong_option_is_refused(option: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", option])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_named_benchmark_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"augury bench {name}" in capsys.readouterr().out


def test_an_unknown_benchmark_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    printed = capsys.readouterr().err
    assert all(name in printed for name in BENCHMARKS)
