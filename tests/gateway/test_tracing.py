"""An HTTP request is one span, part of its client's trace; the backend gets the traceparent to go on with."""

import httpx
import pytest
from opentelemetry.trace import StatusCode

from augury.errors import NoWorkerError
from tests.gateway.scripted import Script, ScriptedBackend
from tests.tracing import PARENT, TRACE, recorded, service_of, trace_of


def ask(port: int, **fields: object) -> httpx.Response:
    headers = {"traceparent": PARENT, "x-request-id": "mine"}
    body = {"prompt": "a", "max_tokens": 3, **fields}
    return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_of_its_clients_trace(port: int, backend: ScriptedBackend, stream: bool) -> None:
    with recorded() as exporter:
        assert ask(port, stream=stream, n=2).status_code == 200
        httpx.get(f"http://127.0.0.1:{port}/health")
    (span,) = exporter.get_finished_spans()
    assert (service_of(span), span.name, trace_of(span)) == ("gateway", "POST /v1/completions", TRACE)
    assert span.context is not None
    passed_on = f"00-{TRACE:032x}-{span.context.span_id:016x}-01"
    assert [generation.trace for generation in backend.seen] == [passed_on] * 2
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.usage.input_tokens"] and attributes["augury.cached_tokens"] == 0
    assert (
        attributes.items()
        >= {
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
            "augury.request_id": "mine",
            "gen_ai.usage.output_tokens": 6,
            "gen_ai.response.finish_reasons": ("length", "length"),
        }.items()
    )


def test_a_failure_is_a_span_too(port: int, backend: ScriptedBackend) -> None:
    backend.script = lambda _: Script(tokens=[], error=NoWorkerError("gone"))
    with recorded() as exporter:
        assert ask(port).status_code == 503
        assert ask(port, max_tokens="x").status_code == 400
    failed, refused = exporter.get_finished_spans()
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["gen_ai.response.finish_reasons"] == ("no_worker",)
    assert refused.status.status_code is StatusCode.UNSET
    assert (refused.attributes or {})["http.response.status_code"] == 400


def test_without_tracing_nothing_is_passed_on(port: int, backend: ScriptedBackend) -> None:
    assert ask(port).status_code == 200
    assert [generation.trace for generation in backend.seen] == [None]
