"""Spans of this process, kept in memory while a test runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from augury import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = 0x0AF7651916CD43DD8448EB211C80319C


@contextmanager
def recorded(sample_ratio: float = 1.0) -> Iterator[InMemorySpanExporter]:
    """Everything that ends meanwhile."""
    exporter = InMemorySpanExporter()
    tracing.record(SimpleSpanProcessor(exporter), "test", sample_ratio)
    try:
        yield exporter
    finally:
        tracing.stop()


def service_of(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return str(span.instrumentation_scope.name)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def follows(child: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether ``child`` was started with the traceparent of ``parent``."""
    assert child.parent is not None and parent.context is not None
    return (child.parent.trace_id, child.parent.span_id) == (parent.context.trace_id, parent.context.span_id)
