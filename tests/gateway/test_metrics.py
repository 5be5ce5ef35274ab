"""The page of metrics says what the workers say and what clients are told as usage, under both sets of names."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from augury.types import Description, Miss, WorkerStatus
from gateway import catalogue
from gateway.backend import flaws
from gateway.catalogue import Kind
from gateway.metrics import Metrics
from gateway.model import ServedModel
from tests.gateway.scripted import Script, ScriptedBackend, worker_status
from tests.gateway.tiny import write_model
from tests.gateway.whole import complete, system, write_llama
from tests.worker.tiny import save_predictable

torch.set_num_threads(1)

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]

counts = st.integers(0, 2**40)
special = {
    "worker_id": st.uuids().map(str),
    "ready": st.booleans(),
    "num_blocks": st.integers(2, 1000),
    "num_available": st.just(1),
    "accepted_at": st.lists(counts, max_size=4).map(tuple),
    "accepted_lengths": st.lists(counts, max_size=5).map(tuple),
    "misses": st.dictionaries(st.sampled_from(Miss), counts),
    "draining": st.booleans(),
    "iteration_tokens": st.lists(counts, max_size=5).map(tuple),
}
statuses = st.builds(WorkerStatus, **(dict.fromkeys(WorkerStatus.__slots__, counts) | special))


def described(*workers: WorkerStatus, num_parked: int = 0) -> Description:
    return Description(model="m", max_model_len=9, vocab_size=9, num_parked=num_parked, workers=workers)


def samples(page: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_the_page_holds_the_catalogue_and_nothing_else() -> None:
    metrics = Metrics("tiny")
    metrics.http_requests.labels("/", 200).inc()
    metrics.generations.labels("stop").inc()
    busy = worker_status("w", accepted_at=(1,), accepted_lengths=(0, 1), iteration_tokens=(0, 1))
    page = metrics.render(described(busy)).decode()
    wanted = {(metric.name, metric.kind.value, metric.meaning) for metric in catalogue.METRICS}
    wanted |= {(metric.vllm, metric.kind.value, metric.meaning) for metric in catalogue.METRICS if metric.vllm}
    families = [each for each in text_string_to_metric_families(page) if not each.name.endswith("_created")]
    assert all(family.samples for family in families)
    assert {(each.name, each.type, each.documentation) for each in families} == wanted
    assert len(families) == len(wanted)


@given(st.lists(statuses, max_size=3, unique_by=lambda status: status.worker_id))
def test_each_worker_is_on_the_page_under_both_names(workers: list[WorkerStatus]) -> None:
    found = samples(Metrics("tiny").render(described(*workers)).decode())
    for worker in workers:
        for metric in catalogue.WORKER:
            if metric.kind is Kind.HISTOGRAM:
                continue
            suffix = "_total" if metric.kind is Kind.COUNTER else ""
            for labels, number in metric.read(worker).items():
                named = dict(zip(metric.labels, (worker.worker_id, *labels), strict=True))
                assert value(found, metric.name + suffix, **named) == number
                if metric.vllm:
                    named = {catalogue.VLLM_LABELS.get(name, name): label for name, label in named.items()}
                    assert value(found, metric.vllm + suffix, model_name="tiny", **named) == number
    assert sum(name == "augury_worker_ready" for name, _ in found) == len(workers)


@given(statuses)
def test_accepted_lengths_are_a_histogram(worker: WorkerStatus) -> None:
    found = samples(Metrics("tiny").render(described(worker)).decode())
    name, label, lengths = "augury_worker_accepted_length", {"worker": worker.worker_id}, worker.accepted_lengths
    for bound in range(len(lengths)):
        assert value(found, f"{name}_bucket", le=f"{bound}.0", **label) == sum(lengths[: bound + 1])
    assert value(found, f"{name}_bucket", le="+Inf", **label) == sum(lengths) == value(found, f"{name}_count", **label)
    assert value(found, f"{name}_sum", **label) == sum(length * count for length, count in enumerate(lengths))


@given(statuses)
def test_iteration_tokens_are_counted_up_to_each_power_of_two(worker: WorkerStatus) -> None:
    found = samples(Metrics("tiny").render(described(worker)).decode())
    label, counted = {"engine": worker.worker_id, "model_name": "tiny"}, worker.iteration_tokens
    for bits in range(len(counted)):
        most = 2**bits - 1
        below = value(found, "vllm:iteration_tokens_total_bucket", le=f"{most}.0", **label)
        assert below == sum(counted[: bits + 1])
    assert value(found, "vllm:iteration_tokens_total_bucket", le="+Inf", **label) == sum(counted)
    assert value(found, "vllm:iteration_tokens_total_count", **label) == sum(counted)
    assert value(found, "vllm:iteration_tokens_total_sum", **label) == worker.total_iteration_tokens


@pytest.mark.parametrize(
    ("num_blocks", "num_available", "usage"), [(9, 8, 0.0), (9, 0, 1.0), (9, 2, 0.75), (1, 0, 0.0)]
)
def test_the_null_block_is_no_part_of_the_usage(num_blocks: int, num_available: int, usage: float) -> None:
    assert catalogue.kv_usage(worker_status("w", num_blocks=num_blocks, num_available=num_available)) == usage


def test_parked_requests_wait_and_without_a_scheduler_nothing_does() -> None:
    metrics = Metrics("tiny")
    workers = [worker_status(f"w{index}", num_waiting=2, num_running=1) for index in range(2)]
    found = samples(metrics.render(described(*workers, num_parked=3)).decode())
    names = ("augury_waiting_requests", "augury_running_requests", "augury_ready_workers")
    assert [value(found, name) for name in names] == [7, 2, 2]
    assert [value(samples(metrics.render(None).decode()), name) for name in names] == [0, 0, 0]


def test_what_the_gateway_counts_is_the_sum_of_usage(
    client: openai.OpenAI, port: int, model: ServedModel, backend: ScriptedBackend
) -> None:
    backend.script = lambda _: Script(tokens=[65, 66, 67], group=2, num_cached=1, num_drafts=2)
    usages = [client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=3).usage for _ in range(2)]
    usages.append(client.completions.create(model="tiny", prompt="a", stop=model.decode([66]), max_tokens=9).usage)
    found = samples(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    details = [usage.completion_tokens_details for usage in usages]
    assert value(found, "augury_prompt_tokens_total") == sum(usage.prompt_tokens for usage in usages)
    assert value(found, "augury_cached_tokens_total") == 2 * 2 + 1
    assert value(found, "augury_generation_tokens_total") == sum(usage.completion_tokens for usage in usages) == 26
    accepted = sum(each.accepted_prediction_tokens for each in details)
    assert value(found, "augury_accepted_draft_tokens_total") == accepted > 0
    rejected = sum(each.rejected_prediction_tokens for each in details)
    assert value(found, "augury_rejected_draft_tokens_total") == rejected > 0
    assert value(found, "augury_generations_total", outcome="length") == 8
    assert value(found, "vllm:request_success_total", finished_reason="stop", model_name="tiny") == 1
    assert value(found, "augury_http_requests_total", route="/v1/completions", status="200") == 3
    assert value(found, "vllm:e2e_request_latency_seconds_count", model_name="tiny") == 3
    assert value(found, "augury_request_choices_sum") == 5


def test_each_choice_has_its_times(client: openai.OpenAI, port: int, backend: ScriptedBackend) -> None:
    backend.script = lambda _: Script(tokens=[65, 66], group=2, pause_s=0.02)
    client.completions.create(model="tiny", prompt="a", n=2, max_tokens=6)
    found = samples(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    assert value(found, "augury_time_to_first_token_seconds_count") == 2
    assert value(found, "augury_inter_token_seconds_count") == 4
    assert value(found, "augury_inter_token_seconds_sum") >= 4 * 0.02
    assert value(found, "augury_time_per_output_token_seconds_count") == 2
    per_token = value(found, "augury_time_per_output_token_seconds_sum")
    assert per_token == pytest.approx(value(found, "augury_inter_token_seconds_sum") / 4)


def test_the_time_until_admission_is_told_from_the_time_after_it(
    client: openai.OpenAI, port: int, backend: ScriptedBackend
) -> None:
    backend.script = lambda _: Script(tokens=[65], pause_s=0.05, waited_ms=30)
    client.completions.create(model="tiny", prompt="a", max_tokens=3)
    found = samples(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    names = ("queue", "prefill", "decode", "inference")
    queue, prefill, decode, inference = (
        value(found, f"vllm:request_{name}_time_seconds_sum", model_name="tiny") for name in names
    )
    assert queue == pytest.approx(0.03)
    assert prefill >= 0.05 - 0.03 - 0.001
    assert inference == pytest.approx(prefill + decode)


def test_what_a_scheduler_says_is_amiss_is_told_and_a_worker_that_leaves_is_not() -> None:
    leaving = worker_status("w1", ready=False, draining=True)
    description = described(worker_status("w0"), leaving)
    assert flaws(description) == []
    assert flaws(replace(description, flaws=("the registry is lost",))) == ["the registry is lost"]
    silent = described(worker_status("w0"), leaving, worker_status("w2", ready=False))
    assert flaws(silent) == ["1 of 3 workers take no requests"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two MTP modules whose drafts are often right."""
    folder = write_model(tmp_path_factory.mktemp("drafting"))
    save_predictable(folder, 2)
    return folder


async def scrape(http: httpx.AsyncClient) -> Samples:
    return samples((await http.get("/metrics")).text)


async def test_the_workers_counters_are_the_sum_of_usage(drafting: Path) -> None:
    async with system(drafting, "model.dtype=float32", "speculation.depth=2") as http:
        prompts = [range(5 + index % 2, 60) for index in range(6)]
        usages = [await complete(http, prompts[0], max_tokens=20)]
        usages += await asyncio.gather(*(complete(http, prompt, max_tokens=20) for prompt in prompts))
        usages.append(await complete(http, prompts[0], max_tokens=20, max_drafts=0))
        found = await scrape(http)
    *speculated, plain = [usage["completion_tokens_details"] for usage in usages]
    assert plain == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    accepted = sum(details["accepted_prediction_tokens"] for details in speculated)
    num_drafts = accepted + sum(details["rejected_prediction_tokens"] for details in speculated)
    num_prompt = sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    engine = {"engine": "worker-0", "model_name": "tiny"}
    assert value(found, "vllm:prompt_tokens_total", **engine) == num_prompt
    assert value(found, "vllm:generation_tokens_total", **engine) == 8 * 20
    assert value(found, "vllm:prefix_cache_queries_total", **engine) == num_prompt
    assert value(found, "vllm:prefix_cache_hits_total", **engine) == cached > 0
    assert value(found, "vllm:spec_decode_num_draft_tokens_total", **engine) == num_drafts
    assert value(found, "vllm:spec_decode_num_accepted_tokens_total", **engine) == accepted > 0
    num_steps = value(found, "vllm:spec_decode_num_drafts_total", **engine)
    assert value(found, "augury_worker_accepted_length_count", worker="worker-0") == num_steps
    assert value(found, "augury_worker_accepted_length_sum", worker="worker-0") == accepted
    assert value(found, "augury_accepted_draft_tokens_total") == accepted
    # What a choice's first row and its last token leave to rows that each compute one known token beside the drafts.
    num_decoded = 8 * (20 - 1) - accepted
    assert value(found, "vllm:iteration_tokens_total_sum", **engine) == num_prompt - cached + num_decoded + num_drafts


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(3000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


async def test_gauges_fall_to_zero_when_all_clients_leave(llama: Path) -> None:
    names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]

    async def gauges() -> list[float]:
        found = await scrape(http)
        return [value(found, name, engine="worker-0", model_name="tiny") for name in names]

    async def all_rise() -> bool:
        return all(await gauges())

    async def all_fall() -> bool:
        return not any(await gauges())

    async with system(llama, "scheduler.max_running=2") as http:
        tasks = [asyncio.create_task(complete(http, [5] * 30, max_tokens=480)) for _ in range(5)]
        await until(all_rise)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await until(all_fall)
        assert value(await scrape(http), "augury_generations_total", outcome="cancelled") == 5
