"""Spans across services: what they belong to, what is kept, and that without an endpoint there is nothing at all."""

import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.trace import StatusCode

from augury import config, tracing
from augury.config import TelemetrySettings
from tests.tracing import PARENT, TRACE, follows, recorded, service_of, trace_of

WITHOUT = """
import sys
from augury import tracing
from augury.config import TelemetrySettings
tracing.setup("x", TelemetrySettings())
span = tracing.start("x", "y", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", {"a": 1})
span.note({"b": 2}); span.event("c"); span.end("d")
assert span is tracing.SILENT and span.trace is None
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_without_an_endpoint_nothing_is_imported_or_recorded() -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_missing_package_is_told_to_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ValueError, match="extra 'telemetry'"):
        tracing.setup("x", TelemetrySettings(otlp_endpoint="http://127.0.0.1:4317"))


@pytest.mark.parametrize("endpoint", ["collector:4317", "grpc://collector", "http://"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match="otlp_endpoint"):
        config.load(overrides=[f"telemetry.otlp_endpoint={endpoint}"])


def test_a_span_of_the_next_service_belongs_to_the_one_before() -> None:
    with recorded() as exporter:
        first = tracing.start("one", "a", PARENT)
        second = tracing.start("two", "b", first.trace, {"n": 1}, at_ns=5)
        second.event("halfway", {"worker": "w"})
        second.end(at_ns=9)
        first.rename("c")
        first.end("it broke")
    inner, outer = exporter.get_finished_spans()
    assert [service_of(span) for span in (inner, outer)] == ["two", "one"]
    assert trace_of(inner) == trace_of(outer) == TRACE
    assert follows(inner, outer)
    assert (inner.start_time, inner.end_time, dict(inner.attributes or {})) == (5, 9, {"n": 1})
    assert [event.name for event in inner.events] == ["halfway"]
    assert (outer.name, outer.status.status_code, outer.status.description) == ("c", StatusCode.ERROR, "it broke")


@pytest.mark.parametrize("header", [None, "", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ü" * 99])
def test_a_traceparent_that_is_none_begins_a_new_trace(header: str | None) -> None:
    with recorded() as exporter:
        tracing.start("one", "a", header).end()
    (span,) = exporter.get_finished_spans()
    assert span.parent is None and trace_of(span) != TRACE


def test_whoever_begins_a_trace_decides_whether_it_is_kept() -> None:
    with recorded(sample_ratio=0.0) as exporter:
        dropped = tracing.start("one", "a")
        tracing.start("two", "b", dropped.trace).end()
        dropped.end()
        tracing.start("one", "c", PARENT).end()
        tracing.start("one", "d", PARENT.removesuffix("1") + "0").end()
    assert [span.name for span in exporter.get_finished_spans()] == ["c"]


class Collector(TraceServiceServicer):
    """Takes what an exporter sends."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []

    def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
        self.requests.append(request)
        return ExportTraceServiceResponse()


def test_spans_reach_a_collector_under_their_services_name() -> None:
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        tracing.setup("augury-worker", TelemetrySettings(otlp_endpoint=f"http://127.0.0.1:{port}"))
        tracing.start("worker", "compute", PARENT).end()
    finally:
        tracing.stop()
        server.stop(None)
    (request,) = collector.requests
    (sent,) = request.resource_spans
    names = {pair.key: pair.value.string_value for pair in sent.resource.attributes}
    (span,) = sent.scope_spans[0].spans
    assert (names["service.name"], span.name) == ("augury-worker", "compute")
    assert span.trace_id == TRACE.to_bytes(16, "big")


def test_a_service_ends_soon_though_no_collector_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing.setup("x", TelemetrySettings(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        tracing.start("x", "y").end()
        began = time.monotonic()
        tracing.stop()
        assert time.monotonic() - began < 10
    assert tracing.start("x", "y") is tracing.SILENT
