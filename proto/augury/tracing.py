"""Traces: one request is one trace through all services, by OpenTelemetry where that is set up, else nothing at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from augury.config import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry import trace as otel
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

Value = str | int | float | bool | Sequence[str]

_NONE: Mapping[str, Value] = {}
_HEADER = "traceparent"
_EXPORT_SECONDS = 2.0
"""A collector that takes longer loses spans, and a service that ends waits for it no longer than that."""

_provider: TracerProvider | None = None


class Span:
    """A stretch of a request's way through a service. This one records nothing."""

    __slots__ = ()

    @property
    def trace(self) -> str | None:
        """The W3C traceparent that makes a span of the next service part of this one."""
        return None

    def note(self, attributes: Mapping[str, Value]) -> None:
        """What has become known of it."""

    def rename(self, name: str) -> None:
        """What it is, where the start did not tell."""

    def event(self, name: str, attributes: Mapping[str, Value] = _NONE) -> None:
        """Something that happens now."""

    def end(self, error: str | None = None, at_ns: int | None = None) -> None:
        """It is over, with ``error`` if it failed; ``at_ns`` (since 1970) if not now."""


SILENT = Span()


class _Recorded(Span):
    __slots__ = ("_span",)

    def __init__(self, span: otel.Span) -> None:
        self._span = span

    @property
    def trace(self) -> str | None:
        from opentelemetry import trace as otel
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, otel.set_span_in_context(self._span))
        return carrier[_HEADER]

    def note(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def event(self, name: str, attributes: Mapping[str, Value] = _NONE) -> None:
        self._span.add_event(name, attributes)

    def end(self, error: str | None = None, at_ns: int | None = None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(at_ns)


def setup(service: str, settings: TelemetrySettings) -> None:
    """Send spans to ``telemetry.otlp_endpoint``, if that is set. Raises ValueError where the packages are missing."""
    if settings.otlp_endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ValueError("telemetry.otlp_endpoint needs augury's extra 'telemetry', which is not installed") from error
    exporter = OTLPSpanExporter(endpoint=settings.otlp_endpoint, timeout=_EXPORT_SECONDS)
    record(BatchSpanProcessor(exporter), service, settings.sample_ratio)


def record(processor: SpanProcessor, service: str, sample_ratio: float = 1.0) -> None:
    """From now on ``processor`` gets the spans of this process, which is a ``service``.

    Where a trace begins here, it is kept with probability ``sample_ratio``; else whoever began it has decided.
    """
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    global _provider
    resource = Resource.create({SERVICE_NAME: service})
    _provider = TracerProvider(sampler=ParentBasedTraceIdRatio(sample_ratio), resource=resource)
    _provider.add_span_processor(processor)


def stop() -> None:
    """Hand over what is recorded, and record no more."""
    global _provider
    if _provider is not None:
        _provider.shutdown()
    _provider = None


def start(
    service: str,
    name: str,
    parent: str | None = None,
    attributes: Mapping[str, Value] = _NONE,
    at_ns: int | None = None,
) -> Span:
    """A span of ``service`` that begins now, or began ``at_ns`` (since 1970).

    It belongs to the one that ``parent``, a traceparent, stands for; without a valid one it begins a trace.
    """
    if _provider is None:
        return SILENT
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({_HEADER: parent} if parent else {})
    tracer = _provider.get_tracer(service)
    return _Recorded(tracer.start_span(name, context, attributes=attributes, start_time=at_ns))
