"""The metrics of the catalogue: what the gateway counts, what the scheduler says, and the page of both."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from augury.types import Description, WorkerStatus
from gateway import catalogue
from gateway.catalogue import Kind, Metric, SchedulerGauge, WorkerMetric
from gateway.replies import Usage


class Metrics:
    """One registry for each application, so that several live in one process."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._registry = prometheus.CollectorRegistry()
        self.http_requests = self._counter(catalogue.HTTP_REQUESTS)
        self.generations = self._counter(catalogue.GENERATIONS)
        self.prompt_tokens = self._counter(catalogue.PROMPT_TOKENS)
        self.cached_tokens = self._counter(catalogue.CACHED_TOKENS)
        self.generation_tokens = self._counter(catalogue.GENERATION_TOKENS)
        self.accepted_tokens = self._counter(catalogue.ACCEPTED_TOKENS)
        self.rejected_tokens = self._counter(catalogue.REJECTED_TOKENS)
        self.time_to_first_token = self._histogram(catalogue.TIME_TO_FIRST_TOKEN)
        self.inter_token = self._histogram(catalogue.INTER_TOKEN)
        self.time_per_token = self._histogram(catalogue.TIME_PER_TOKEN)
        self.request_seconds = self._histogram(catalogue.REQUEST_SECONDS)
        self.queue_seconds = self._histogram(catalogue.QUEUE_SECONDS)
        self.prefill_seconds = self._histogram(catalogue.PREFILL_SECONDS)
        self.decode_seconds = self._histogram(catalogue.DECODE_SECONDS)
        self.inference_seconds = self._histogram(catalogue.INFERENCE_SECONDS)
        self.request_prompt_tokens = self._histogram(catalogue.REQUEST_PROMPT_TOKENS)
        self.request_generation_tokens = self._histogram(catalogue.REQUEST_GENERATION_TOKENS)
        self.request_max_tokens = self._histogram(catalogue.REQUEST_MAX_TOKENS)
        self.request_choices = self._histogram(catalogue.REQUEST_CHOICES)

    def count(self, usage: Usage) -> None:
        """Add the tokens of one request."""
        drafts = usage.completion_tokens_details
        self.prompt_tokens.inc(usage.prompt_tokens)
        self.cached_tokens.inc(usage.prompt_tokens_details.cached_tokens)
        self.generation_tokens.inc(usage.completion_tokens)
        self.accepted_tokens.inc(drafts.accepted_prediction_tokens)
        self.rejected_tokens.inc(drafts.rejected_prediction_tokens)

    def render(self, description: Description | None) -> bytes:
        """Everything in Prometheus' text format; no ``description`` where the scheduler does not answer."""
        workers = description.workers if description else ()
        families = [
            *self._registry.collect(),
            *(_scheduler_family(metric, description) for metric in catalogue.SCHEDULER),
            *(_worker_family(metric, workers) for metric in catalogue.WORKER),
        ]
        vllm = {metric.name: metric.vllm for metric in catalogue.METRICS if metric.vllm}
        aliases = [_alias(each, vllm[each.name], self._model_name) for each in families if each.name in vllm]
        return prometheus.generate_latest(_Page([*families, *aliases]))

    def _counter(self, metric: Metric) -> prometheus.Counter:
        assert metric.kind is Kind.COUNTER
        return prometheus.Counter(metric.name, metric.meaning, metric.labels, registry=self._registry)

    def _histogram(self, metric: Metric) -> prometheus.Histogram:
        assert metric.kind is Kind.HISTOGRAM
        return prometheus.Histogram(
            metric.name, metric.meaning, metric.labels, buckets=metric.buckets, registry=self._registry
        )


class _Page(Collector):
    """Families that are ready to be rendered."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _scheduler_family(metric: SchedulerGauge, description: Description | None) -> Family:
    return GaugeMetricFamily(metric.name, metric.meaning, value=metric.read(description) if description else 0)


def _worker_family(metric: WorkerMetric, workers: Iterable[WorkerStatus]) -> Family:
    if metric.kind is Kind.HISTOGRAM:
        return _worker_histogram(metric, workers)
    kind = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for worker in workers:
        for labels, value in metric.read(worker).items():
            family.add_metric([worker.worker_id, *labels], value)
    return family


def _worker_histogram(metric: WorkerMetric, workers: Iterable[WorkerStatus]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for worker in workers:
        counts = {float(value): count for (value,), count in metric.read(worker).items()}
        bounds = [*map(floatToGoString, counts), "+Inf"]
        totals = [*accumulate(counts.values()), sum(counts.values())]
        summed = metric.total(worker) if metric.total else sum(value * count for value, count in counts.items())
        family.add_metric([worker.worker_id], list(zip(bounds, totals, strict=True)), summed)
    return family


def _alias(family: Family, name: str, model_name: str) -> Family:
    """``family`` under vLLM's ``name`` and labels."""
    alias = Family(name, family.documentation, family.type)
    for sample in family.samples:
        labels = {catalogue.VLLM_LABELS.get(label, label): value for label, value in sample.labels.items()}
        labels["model_name"] = model_name
        alias.add_sample(name + sample.name.removeprefix(family.name), labels, sample.value)
    return alias
