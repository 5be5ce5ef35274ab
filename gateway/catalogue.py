"""Every metric: its name, type, labels and meaning, and the name under which dashboards made for vLLM look for it.

What a worker does is read from the scheduler when Prometheus asks. So it is the same at every gateway of a scheduler
(over gateways take the maximum), counts since the worker registered, and is gone when the worker is. What the gateway
counts is its own (over gateways take the sum) and counts exactly what clients are told as usage.

Under vLLM's names the label ``worker`` is called ``engine``, and every sample has the label ``model_name``. Where only
the gateway can measure, there is no ``engine``. Names are without the ``_total`` that counters end with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from augury.types import Description, Miss, WorkerStatus
from gateway.backend import num_ready_workers, num_running, num_waiting

VLLM_LABELS = {"worker": "engine", "outcome": "finished_reason", "num_blocks": "num_gpu_blocks"}
"""Labels that are called otherwise under vLLM's names."""


class Kind(Enum):
    """Prometheus' types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``buckets`` are the upper bounds of a histogram that the gateway fills."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    vllm: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerGauge(Metric):
    """Read from the scheduler; 0 where that does not answer."""

    kind: Kind = Kind.GAUGE
    read: Callable[[Description], float]


Reading = Mapping[tuple[str, ...], float]
"""Values of one worker by those of the labels after ``worker``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetric(Metric):
    """Read from the scheduler for each worker. A histogram is read as counts by value, or by the largest value counted
    where ``total`` reads the sum of all values.
    """

    labels: tuple[str, ...] = ("worker",)
    read: Callable[[WorkerStatus], Reading]
    total: Callable[[WorkerStatus], float] | None = None


def kv_usage(worker: WorkerStatus) -> float:
    """Share of the blocks in use; all but the null block can be. A cached block that nobody refers to is free."""
    num_usable = worker.num_blocks - 1
    return (num_usable - worker.num_available) / num_usable if num_usable else 0.0


def _gauge(name: str, meaning: str, read: Callable[[WorkerStatus], float], vllm: str | None = None) -> WorkerMetric:
    return WorkerMetric(name=name, kind=Kind.GAUGE, meaning=meaning, vllm=vllm, read=lambda worker: {(): read(worker)})


def _counter(name: str, meaning: str, read: Callable[[WorkerStatus], float], vllm: str | None = None) -> WorkerMetric:
    return WorkerMetric(
        name=name, kind=Kind.COUNTER, meaning=meaning, vllm=vllm, read=lambda worker: {(): read(worker)}
    )


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 20)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

HTTP_REQUESTS = Metric(
    name="augury_http_requests",
    kind=Kind.COUNTER,
    meaning="HTTP requests by route and status",
    labels=("route", "status"),
)
GENERATIONS = Metric(
    name="augury_generations",
    kind=Kind.COUNTER,
    meaning="Choices by outcome: a finish reason, cancelled, or an error code",
    labels=("outcome",),
    vllm="vllm:request_success",
)
PROMPT_TOKENS = Metric(
    name="augury_prompt_tokens",
    kind=Kind.COUNTER,
    meaning="Tokens of prompts, once for each prompt",
)
CACHED_TOKENS = Metric(
    name="augury_cached_tokens",
    kind=Kind.COUNTER,
    meaning="Prompt tokens taken from the prefix cache",
)
GENERATION_TOKENS = Metric(
    name="augury_generation_tokens",
    kind=Kind.COUNTER,
    meaning="Tokens of answers, up to where a stop string ends them",
)
ACCEPTED_TOKENS = Metric(
    name="augury_accepted_draft_tokens",
    kind=Kind.COUNTER,
    meaning="Draft tokens that became part of an answer",
)
REJECTED_TOKENS = Metric(
    name="augury_rejected_draft_tokens",
    kind=Kind.COUNTER,
    meaning="Draft tokens that were verified and did not become part of an answer",
)
TIME_TO_FIRST_TOKEN = Metric(
    name="augury_time_to_first_token_seconds",
    kind=Kind.HISTOGRAM,
    meaning="From arrival of a request to the first token of a choice",
    buckets=_SECONDS,
    vllm="vllm:time_to_first_token_seconds",
)
INTER_TOKEN = Metric(
    name="augury_inter_token_seconds",
    kind=Kind.HISTOGRAM,
    meaning="Between two deliveries of tokens of a choice, each of one token or, with drafts accepted, of more",
    buckets=_SHORT_SECONDS,
    vllm="vllm:inter_token_latency_seconds",
)
TIME_PER_TOKEN = Metric(
    name="augury_time_per_output_token_seconds",
    kind=Kind.HISTOGRAM,
    meaning="Mean time of a token after the first delivery, for each choice",
    buckets=_SHORT_SECONDS,
    vllm="vllm:request_time_per_output_token_seconds",
)
REQUEST_SECONDS = Metric(
    name="augury_request_seconds",
    kind=Kind.HISTOGRAM,
    meaning="From arrival of a request to its end, whatever that is",
    buckets=_SECONDS,
    vllm="vllm:e2e_request_latency_seconds",
)
QUEUE_SECONDS = Metric(
    name="augury_request_queue_seconds",
    kind=Kind.HISTOGRAM,
    meaning="From submission of a choice until a worker first takes it up, as the scheduler says",
    buckets=_SECONDS,
    vllm="vllm:request_queue_time_seconds",
)
PREFILL_SECONDS = Metric(
    name="augury_request_prefill_seconds",
    kind=Kind.HISTOGRAM,
    meaning="From when a worker first takes a choice up to its first token",
    buckets=_SECONDS,
    vllm="vllm:request_prefill_time_seconds",
)
DECODE_SECONDS = Metric(
    name="augury_request_decode_seconds",
    kind=Kind.HISTOGRAM,
    meaning="From the first to the last token of a choice",
    buckets=_SECONDS,
    vllm="vllm:request_decode_time_seconds",
)
INFERENCE_SECONDS = Metric(
    name="augury_request_inference_seconds",
    kind=Kind.HISTOGRAM,
    meaning="From when a worker first takes a choice up to its last token",
    buckets=_SECONDS,
    vllm="vllm:request_inference_time_seconds",
)
REQUEST_PROMPT_TOKENS = Metric(
    name="augury_request_prompt_tokens",
    kind=Kind.HISTOGRAM,
    meaning="Prompt tokens of each choice",
    buckets=_TOKENS,
    vllm="vllm:request_prompt_tokens",
)
REQUEST_GENERATION_TOKENS = Metric(
    name="augury_request_generation_tokens",
    kind=Kind.HISTOGRAM,
    meaning="Answer tokens of each choice",
    buckets=_TOKENS,
    vllm="vllm:request_generation_tokens",
)
REQUEST_MAX_TOKENS = Metric(
    name="augury_request_max_tokens",
    kind=Kind.HISTOGRAM,
    meaning="Most answer tokens that a choice may have",
    buckets=_TOKENS,
    vllm="vllm:request_params_max_tokens",
)
REQUEST_CHOICES = Metric(
    name="augury_request_choices",
    kind=Kind.HISTOGRAM,
    meaning="Choices that a request asks for each of its prompts",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128),
    vllm="vllm:request_params_n",
)

GATEWAY = (
    HTTP_REQUESTS,
    GENERATIONS,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    GENERATION_TOKENS,
    ACCEPTED_TOKENS,
    REJECTED_TOKENS,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN,
    TIME_PER_TOKEN,
    REQUEST_SECONDS,
    QUEUE_SECONDS,
    PREFILL_SECONDS,
    DECODE_SECONDS,
    INFERENCE_SECONDS,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    REQUEST_MAX_TOKENS,
    REQUEST_CHOICES,
)

SCHEDULER = (
    SchedulerGauge(name="augury_ready_workers", meaning="Workers that take requests", read=num_ready_workers),
    SchedulerGauge(name="augury_running_requests", meaning="Requests in a worker's batch", read=num_running),
    SchedulerGauge(
        name="augury_waiting_requests", meaning="Requests that wait, for one worker or for any", read=num_waiting
    ),
)

WORKER = (
    _gauge("augury_worker_ready", "1 for a worker that takes requests", lambda worker: worker.ready),
    _gauge(
        "augury_worker_draining",
        "1 for a worker that is leaving and gets no new requests",
        lambda worker: worker.draining,
    ),
    _gauge(
        "augury_worker_running_requests",
        "Requests in the batch",
        lambda worker: worker.num_running,
        "vllm:num_requests_running",
    ),
    _gauge(
        "augury_worker_waiting_requests",
        "Requests that wait for this worker",
        lambda worker: worker.num_waiting,
        "vllm:num_requests_waiting",
    ),
    _gauge(
        "augury_worker_queue_tokens",
        "Known tokens that the requests of this worker have yet to compute",
        lambda worker: worker.queue_tokens,
    ),
    _gauge("augury_worker_kv_blocks", "KV blocks, the null block included", lambda worker: worker.num_blocks),
    _gauge(
        "augury_worker_kv_available_blocks",
        "KV blocks that are free, or cached and unused",
        lambda worker: worker.num_available,
    ),
    _gauge(
        "augury_worker_kv_usage_ratio",
        "Share of the KV blocks in use, 0 to 1",
        kv_usage,
        "vllm:kv_cache_usage_perc",
    ),
    WorkerMetric(
        name="augury_worker_kv_info",
        kind=Kind.GAUGE,
        meaning="Tokens in a KV block and number of blocks, as labels; always 1",
        labels=("worker", "block_size", "num_blocks"),
        vllm="vllm:cache_config_info",
        read=lambda worker: {(str(worker.block_size), str(worker.num_blocks)): 1},
    ),
    WorkerMetric(
        name="augury_worker_lora_info",
        kind=Kind.GAUGE,
        meaning="LoRA adapters, for those who read vLLM's name: there are none",
        labels=("worker", "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        vllm="vllm:lora_requests_info",
        read=lambda worker: {("0", "", ""): 0},
    ),
    _counter(
        "augury_worker_prompt_tokens",
        "Prompt tokens of admitted requests, the cached ones included; each choice is a request",
        lambda worker: worker.prompt_tokens,
        "vllm:prompt_tokens",
    ),
    _counter(
        "augury_worker_generation_tokens",
        "Tokens generated, those after a stop string included",
        lambda worker: worker.generation_tokens,
        "vllm:generation_tokens",
    ),
    _counter(
        "augury_worker_prefix_query_tokens",
        "Tokens looked up in the prefix cache",
        lambda worker: worker.query_tokens,
        "vllm:prefix_cache_queries",
    ),
    _counter(
        "augury_worker_prefix_hit_tokens",
        "Tokens found in the prefix cache",
        lambda worker: worker.hit_tokens,
        "vllm:prefix_cache_hits",
    ),
    WorkerMetric(
        name="augury_prefix_cache_misses",
        kind=Kind.COUNTER,
        meaning="Lookups in the prefix cache that ended short of the prompt, by why they ended",
        labels=("worker", "reason"),
        read=lambda worker: {(reason.value,): worker.misses.get(reason, 0) for reason in Miss},
    ),
    _counter(
        "augury_worker_refused_hits",
        "Hits in the prefix cache that the worker did not recognise",
        lambda worker: worker.num_refused,
    ),
    _counter(
        "augury_worker_preemptions",
        "Requests put back to make room for others",
        lambda worker: worker.num_preemptions,
        "vllm:num_preemptions",
    ),
    _counter("augury_worker_iterations", "Steps of the whole batch", lambda worker: worker.num_iterations),
    WorkerMetric(
        name="augury_worker_iteration_tokens",
        kind=Kind.HISTOGRAM,
        meaning="Tokens of a step of the whole batch, drafts included, in powers of 2",
        vllm="vllm:iteration_tokens_total",
        read=lambda worker: {(str(2**bits - 1),): count for bits, count in enumerate(worker.iteration_tokens)},
        total=lambda worker: worker.total_iteration_tokens,
    ),
    _counter(
        "augury_worker_drafts",
        "Steps of a request that verified drafts; draft tokens by this is the depth in use",
        lambda worker: worker.num_drafts,
        "vllm:spec_decode_num_drafts",
    ),
    _counter(
        "augury_worker_draft_tokens",
        "Draft tokens verified",
        lambda worker: worker.draft_tokens,
        "vllm:spec_decode_num_draft_tokens",
    ),
    _counter(
        "augury_worker_accepted_tokens",
        "Draft tokens accepted: the leading run of each step, cut where the text ends",
        lambda worker: sum(worker.accepted_at),
        "vllm:spec_decode_num_accepted_tokens",
    ),
    WorkerMetric(
        name="augury_worker_accepted_tokens_per_position",
        kind=Kind.COUNTER,
        meaning="Draft tokens accepted by their position in the step's drafts, the first being 0",
        labels=("worker", "position"),
        vllm="vllm:spec_decode_num_accepted_tokens_per_pos",
        read=lambda worker: {(str(position),): count for position, count in enumerate(worker.accepted_at)},
    ),
    WorkerMetric(
        name="augury_worker_accepted_length",
        kind=Kind.HISTOGRAM,
        meaning="Draft tokens accepted by a step of a request that verified some",
        read=lambda worker: {(str(length),): count for length, count in enumerate(worker.accepted_lengths)},
    ),
)

METRICS: tuple[Metric, ...] = (*GATEWAY, *SCHEDULER, *WORKER)
