"""A scheduler's span of a request lasts from its submission to its end, with what happened to it between."""

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from augury.types import Delta, Ended, EndReason, Generation, SamplingParams, Step, StopParams
from scheduler_svc import spans
from scheduler_svc.spans import Spans
from tests.tracing import PARENT, TRACE, recorded, trace_of
from tests.worker.test_spans import fresh

ASKED = Generation(
    request_id="r-0", prompt=(1, 2), sampling=SamplingParams(), stopping=StopParams(max_tokens=9), trace=PARENT
)


def ended(reason: EndReason, code: str | None = None, message: str | None = None) -> Ended:
    return Ended(reason=reason, error_code=code, error_message=message)


def events(span: ReadableSpan) -> list[tuple[str, object]]:
    return [(event.name, (event.attributes or {})["augury.worker"]) for event in span.events]


def test_a_span_tells_where_the_request_was() -> None:
    with recorded() as exporter:
        open_spans, span = Spans(), spans.begin(ASKED)
        assert span.trace and span.trace.split("-")[1] == f"{TRACE:032x}" and span.trace != PARENT
        open_spans.follow(5, span)
        open_spans.stepped("a", Step(epoch=1, seq=1, fresh=(fresh(5), fresh(6))))
        open_spans.stepped("a", Step(epoch=1, seq=2, released=(5, 6)))
        open_spans.stepped("a", Step(epoch=1, seq=3, fresh=(fresh(5),)))
        open_spans.stepped("b", Step(epoch=9, seq=1, fresh=(fresh(5),)))
        open_spans.published(Delta(ticket=5, tokens=(1,)))
        open_spans.published(Delta(ticket=6, ended=ended(EndReason.STOP)))
        open_spans.published(Delta(ticket=5, ended=ended(EndReason.LENGTH)))
        open_spans.stepped("b", Step(epoch=9, seq=2, released=(5,)))
    (found,) = exporter.get_finished_spans()
    assert trace_of(found) == TRACE
    assert events(found) == [("admitted", "a"), ("put back", "a"), ("admitted", "a"), ("moved", "b")]
    assert (found.attributes or {})["augury.outcome"] == "length"
    assert (found.attributes or {})["augury.request_id"] == "r-0"


def test_a_refused_request_ends_with_its_error() -> None:
    with recorded() as exporter:
        spans.finish(spans.begin(ASKED), ended(EndReason.FAILED, "overloaded", "too many"))
    (found,) = exporter.get_finished_spans()
    assert (found.attributes or {})["augury.outcome"] == "overloaded"
    assert (found.status.status_code, found.status.description) == (StatusCode.ERROR, "too many")
