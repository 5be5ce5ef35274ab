"""What the pool of workers is scaled by has sane values: the queries of KEDA and the HPA, worked out on real pages."""

import asyncio
import re
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from augury.types import Description, WorkerStatus
from gateway.metrics import Metrics
from tests.gateway.scripted import worker_status
from tests.gateway.test_metrics import until
from tests.gateway.whole import complete, system, write_llama

COMPONENTS = Path(__file__).resolve().parents[2] / "deploy/k8s/components"
TRIGGERS = yaml.safe_load((COMPONENTS / "keda/scaledobject.yaml").read_text())["spec"]["triggers"]
QUEUE, USAGE = [trigger["metadata"]["query"] for trigger in TRIGGERS]
NUM_PROMPT = 30
NUM_RUNNING, NUM_WAITING = 2, 3


def evaluate(query: str, pages: list[str]) -> float:
    """A query of the form sum(max by (label) (metric)), over the gateways whose ``pages`` Prometheus has."""
    match = re.fullmatch(r"sum\(max by \((\w+)\) \((\w+)\)\)", query)
    assert match, query
    label, name = match.groups()
    largest: dict[str, float] = {}
    for page in pages:
        lines = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                key = sample.labels[label]
                largest[key] = max(sample.value, largest.get(key, sample.value))
    return sum(largest.values())


def pools() -> st.SearchStrategy[tuple[WorkerStatus, ...]]:
    sizes = st.integers(2, 10_000).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))
    workers = st.lists(st.tuples(sizes, st.integers(0, 10**6)), max_size=4)
    return workers.map(
        lambda all_of_them: tuple(
            worker_status(f"worker-{index}", num_blocks=size, num_available=available, queue_tokens=tokens)
            for index, ((size, available), tokens) in enumerate(all_of_them)
        )
    )


@given(pools(), st.integers(1, 3))
def test_workers_count_once_however_many_gateways_tell_of_them(
    workers: tuple[WorkerStatus, ...], num_gateways: int
) -> None:
    description = Description(model="m", max_model_len=9, vocab_size=9, num_parked=0, workers=workers)
    pages = [Metrics("tiny").render(description).decode() for _ in range(num_gateways)]
    assert evaluate(QUEUE, pages) == sum(worker.queue_tokens for worker in workers)
    assert 0 <= evaluate(USAGE, pages) <= len(workers)


def test_the_hpa_and_keda_scale_alike() -> None:
    hpa = yaml.safe_load((COMPONENTS / "hpa/hpa.yaml").read_text())["spec"]["metrics"]
    found = {each["external"]["metric"]["name"]: each["external"]["target"]["averageValue"] for each in hpa}
    thresholds = {trigger["metadata"]["query"]: trigger["metadata"]["threshold"] for trigger in TRIGGERS}
    asked = {name: value for query, value in thresholds.items() for name in re.findall(r"augury_\w+", query)}
    assert found.keys() == asked.keys()
    for name, value in found.items():
        in_units = float(value.removesuffix("m")) / (1000 if value.endswith("m") else 1)
        assert in_units == float(asked[name])


async def test_a_running_pool_has_what_waits_and_what_is_in_use(tmp_path: Path) -> None:
    async with system(write_llama(tmp_path), f"scheduler.max_running={NUM_RUNNING}") as http:

        async def page() -> str:
            return (await http.get("/metrics")).text

        async def queue_is_full() -> bool:
            found = await page()
            return f'augury_worker_waiting_requests{{worker="worker-0"}} {NUM_WAITING}.0' in found

        assert [evaluate(query, [await page()]) for query in (QUEUE, USAGE)] == [0, 0]
        prompts = [[5 + index] * NUM_PROMPT for index in range(NUM_RUNNING + NUM_WAITING)]
        tasks = [asyncio.create_task(complete(http, prompt, max_tokens=400)) for prompt in prompts]
        await until(queue_is_full)
        found = await page()
        waiting = NUM_WAITING * NUM_PROMPT
        assert waiting < evaluate(QUEUE, [found, found]) <= waiting + NUM_RUNNING * NUM_PROMPT
        assert 0 < evaluate(USAGE, [found, found]) <= 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

        async def nothing_is_left() -> bool:
            return not any([evaluate(query, [await page()]) for query in (QUEUE, USAGE)])

        await until(nothing_is_left)
