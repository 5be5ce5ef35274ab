"""The pure parts of the benchmark: figures, prompts, and the reading of CPU times."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from deploy.bench.cpu import cpu_seconds
from deploy.bench.prompts import make_prompt
from deploy.bench.stats import Answered, Failed, Level, percentiles, summarise
from worker_svc.model import smollm2

seconds = st.floats(0, 100)


@st.composite
def answers(draw: st.DrawFn) -> Answered:
    sent, first, last = sorted(draw(st.tuples(seconds, seconds, seconds)))
    num_output = draw(st.integers(1, 50))
    return Answered(sent=sent, first_token=first, last_token=last, num_prompt=3, num_output=num_output)


def test_times_of_one_answer() -> None:
    answer = Answered(sent=1.0, first_token=1.5, last_token=2.5, num_prompt=None, num_output=5)
    assert (answer.ttft_ms, answer.tpot_ms) == (500.0, 250.0)
    alone = Answered(sent=1.0, first_token=1.5, last_token=1.5, num_prompt=None, num_output=1)
    assert (alone.ttft_ms, alone.tpot_ms) == (500.0, None)


@given(values=st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_rise_within_the_values(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    slack = 1e-12 * max(values)
    assert min(values) - slack <= found.p50 <= found.p95 + slack <= found.p99 + 2 * slack <= max(values) + 3 * slack
    assert found.p50 == pytest.approx(np.median(values))


@given(good=st.lists(answers()), num_bad=st.integers(0, 5), wall=st.floats(0.1, 100), cpu=st.floats(0, 100))
def test_a_summary_adds_up(good: list[Answered], num_bad: int, wall: float, cpu: float) -> None:
    results = [*good, *[Failed(reason="cut")] * num_bad]
    summary = summarise(Level(concurrency=2, wall_s=wall, cpu_s=cpu), results)
    num_output = sum(answer.num_output for answer in good)
    assert summary.num_requests == len(good) + sum(summary.errors.values())
    assert summary.output_tokens_per_s * wall == pytest.approx(num_output)
    assert summary.num_prompt_tokens == 3 * len(good)
    if num_output:
        assert summary.cpu_ms_per_output_token == pytest.approx(1000 * cpu / num_output)
    else:
        assert (summary.cpu_ms_per_output_token, summary.ttft_ms, summary.tpot_ms) == (None, None, None)


@given(length=st.integers(1, 400), shared=st.floats(0, 1), seed=st.integers())
def test_prompts_have_their_length_and_share_their_beginning(length: int, shared: float, seed: int) -> None:
    first, second = (make_prompt(length, shared=shared, seed=seed, index=index).split() for index in (1, 2))
    assert len(first) == len(second) == length
    num_shared = round(length * shared)
    assert first[:num_shared] == second[:num_shared]
    assert first == make_prompt(length, shared=shared, seed=seed, index=1).split()


def test_a_word_of_a_prompt_is_about_a_token() -> None:
    fields = {name: field.contents() for name, field in GGUFReader(smollm2.find_gguf()).fields.items()}
    encode = smollm2.build_tokenizer(fields).encode
    assert [len(encode(make_prompt(512, shared=0, seed=0, index=i)).ids) for i in range(4)] == [512] * 4


def test_cpu_time_counts_children_alive_and_reaped() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    code = (
        f"import subprocess, sys\ncommand = [sys.executable, '-c', {burn!r}]\nsubprocess.run(command)\n"
        f"subprocess.Popen([*command[:2], {burn!r} + 'print(1, flush=True); input()'])\ninput()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        spent = cpu_seconds([process.pid])
        process.communicate(b"\n\n")
    assert 0.6 <= spent + 0.04 < 2


def test_own_cpu_time_is_what_the_system_says() -> None:
    assert cpu_seconds([os.getpid()]) >= time.process_time() - 0.05
    assert cpu_seconds([]) == 0


def test_a_process_that_is_gone_is_named() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ValueError, match=f"no such process: {process.pid}"):
        cpu_seconds([process.pid])
