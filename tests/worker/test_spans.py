"""A worker's span of a request lasts from the first to the last step with it."""

from augury.types import NewRequest, Outcome, Row, SamplingParams, Step, StopParams
from tests.tracing import PARENT, TRACE, recorded, trace_of
from worker_svc.spans import Spans


def fresh(handle: int, trace: str | None = PARENT) -> NewRequest:
    return NewRequest(
        handle=handle,
        tokens=(1, 2, 3),
        num_prompt=3,
        num_computed=2,
        blocks=((1,),),
        hits=(),
        sampling=SamplingParams(),
        stopping=StopParams(max_tokens=9),
        trace=trace,
    )


def run(spans: Spans, step: Step) -> None:
    """Each row emits one token more than it has drafts."""
    emitted = tuple((7,) * (row.num_drafts + 1) for row in step.rows)
    zeros = (0,) * len(step.rows)
    spans.begins(step)
    spans.ended(step, Outcome(epoch=1, seq=1, emitted=emitted, num_drafts=zeros, num_final=zeros))


def test_a_span_ends_with_the_last_step_and_tells_what_was_done() -> None:
    with recorded() as exporter:
        spans = Spans()
        run(spans, Step(epoch=1, seq=1, fresh=(fresh(1), fresh(2, None)), rows=(Row(handle=1, num_new=1),)))
        run(spans, Step(epoch=1, seq=2, rows=(Row(handle=1, num_new=1, num_drafts=2), Row(handle=2, num_new=1))))
        run(spans, Step(epoch=1, seq=3, rows=(Row(handle=2, num_new=1),)))
        assert exporter.get_finished_spans() == ()
        run(spans, Step(epoch=1, seq=4, released=(1, 2)))
    (span,) = exporter.get_finished_spans()
    assert trace_of(span) == TRACE
    assert dict(span.attributes or {}) == {
        "augury.tokens": 3,
        "augury.hit_tokens": 2,
        "augury.steps": 2,
        "augury.emitted_tokens": 4,
        "augury.verified_drafts": 2,
    }


def test_a_new_epoch_ends_what_was_held_and_a_request_may_come_again() -> None:
    with recorded() as exporter:
        spans = Spans()
        run(spans, Step(epoch=1, seq=1, fresh=(fresh(1),), rows=(Row(handle=1, num_new=1),)))
        run(spans, Step(epoch=2, seq=1, fresh=(fresh(1),), rows=(Row(handle=1, num_new=1),)))
        run(spans, Step(epoch=2, seq=2, released=(1,), fresh=(fresh(1),)))
        run(spans, Step(epoch=2, seq=3, released=(1,)))
    first, second, third = exporter.get_finished_spans()
    assert first.end_time is not None and second.start_time is not None
    assert first.end_time <= second.start_time
    assert (third.attributes or {})["augury.steps"] == 0
