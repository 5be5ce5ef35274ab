"""The lookups of traced requests are spans."""

from augury import tracing
from augury.types import Grant, Granted, Miss, Proposal, Reserve
from kvcache_svc import spans
from tests.tracing import PARENT, TRACE, recorded, trace_of


def test_each_traced_lookup_tells_what_it_found() -> None:
    traces = [PARENT, None, PARENT, PARENT]
    reserves = [Reserve(lease=i, num_slots=9, num_ahead=9, trace=trace) for i, trace in enumerate(traces)]
    hit = Granted(blocks=((1,),), num_computed=16, num_sealed=(1,), miss=Miss.EVICTED)
    answers = (hit, hit, Granted(blocks=((2,),)), None)
    grant = Grant(epoch=1, seq=1, reserves=answers, num_available=3)
    with recorded() as exporter:
        spans.record(Proposal(pool="w", epoch=1, seq=1, reserves=tuple(reserves)), grant, 7)
    found = exporter.get_finished_spans()
    assert [dict(span.attributes or {}) for span in found] == [
        {"augury.pool": "w", "augury.granted": True, "augury.hit_tokens": 16, "augury.miss": "evicted"},
        {"augury.pool": "w", "augury.granted": True, "augury.hit_tokens": 0},
        {"augury.pool": "w", "augury.granted": False},
    ]
    assert {trace_of(span) for span in found} == {TRACE}
    assert {span.start_time for span in found} == {7}
    assert tracing.start("kvcache", "lookup", PARENT) is tracing.SILENT
