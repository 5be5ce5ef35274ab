"""What the gateway counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.backend import Description
from gateway.replies import Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)


class Metrics:
    """One registry for each application, so that several live in one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.http_requests = Counter(
            "augury_http_requests", "HTTP requests by route and status", ["route", "status"], registry=registry
        )
        self.generations = Counter(
            "augury_generations",
            "Choices by outcome: a finish reason, cancelled, or an error code",
            ["outcome"],
            registry=registry,
        )
        self.time_to_first_token = Histogram(
            "augury_time_to_first_token_seconds",
            "From arrival of a request to its first token",
            buckets=_SECONDS,
            registry=registry,
        )
        self.request_seconds = Histogram(
            "augury_request_seconds", "From arrival of a request to its end", buckets=_SECONDS, registry=registry
        )
        self._prompt = Counter("augury_prompt_tokens", "Tokens of prompts", registry=registry)
        self._cached = Counter("augury_cached_tokens", "Prompt tokens taken from the prefix cache", registry=registry)
        self._generated = Counter("augury_generation_tokens", "Tokens of answers", registry=registry)
        self._running = Gauge("augury_running_requests", "Requests in a worker's batch", registry=registry)
        self._waiting = Gauge("augury_waiting_requests", "Requests that wait for a worker", registry=registry)
        self._workers = Gauge("augury_ready_workers", "Workers that take requests", registry=registry)

    def count(self, usage: Usage) -> None:
        """Add the tokens of one request."""
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.prompt_tokens_details.cached_tokens)
        self._generated.inc(usage.completion_tokens)

    def render(self, description: Description | None) -> bytes:
        """Everything in Prometheus' text format; no ``description`` where the scheduler does not answer."""
        self._running.set(description.num_running if description else 0)
        self._waiting.set(description.num_waiting if description else 0)
        self._workers.set(description.num_ready_workers if description else 0)
        return generate_latest(self._registry)
