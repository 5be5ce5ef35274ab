"""The metrics catalogue as a page for people: docs/metrics.md is what `augury metrics` prints."""

from collections.abc import Iterable

from gateway import catalogue
from gateway.catalogue import Kind, Metric

_SUFFIX = {Kind.COUNTER: "_total"}
"""What Prometheus ends the names of a type with."""

_HEAD = """# Metrics

`GET /metrics` of every gateway, in Prometheus' text format; `augury metrics` prints this page.

What a gateway counts is its own: over gateways take the sum. What the schedulers say is the same at every gateway:
over gateways take the maximum. A worker's counters start with its registration and are gone when the worker is.

Where a name of vLLM's is given, the metric is there a second time under that name, with the label `model_name`. The
label `worker` is then called `engine`, `outcome` is `finished_reason` and `num_blocks` is `num_gpu_blocks`."""


def page() -> str:
    """The catalogue as Markdown, one table for each origin of numbers."""
    sections = {
        "Counted by the gateway": catalogue.GATEWAY,
        "Of all workers together": catalogue.SCHEDULER,
        "Of each worker": catalogue.WORKER,
    }
    tables = [f"## {title}\n\n{_table(metrics)}" for title, metrics in sections.items()]
    return "\n\n".join([_HEAD, *tables])


def exposed(name: str, kind: Kind) -> str:
    """The name as queries use it."""
    return name + _SUFFIX.get(kind, "")


def _table(metrics: Iterable[Metric]) -> str:
    rows = [
        f"| `{exposed(metric.name, metric.kind)}` | {metric.kind.value} | {_code(metric.labels)} | {metric.meaning} "
        f"| {_code([exposed(metric.vllm, metric.kind)] if metric.vllm else [])} |"
        for metric in metrics
    ]
    return "\n".join(["| name | type | labels | meaning | vLLM's name |", "| --- | --- | --- | --- | --- |", *rows])


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
