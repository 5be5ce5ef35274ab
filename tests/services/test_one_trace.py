"""One request is one trace through all four services, under the client's traceparent."""

from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from tests.gateway.whole import complete, system, write_llama
from tests.tracing import PARENT, TRACE, follows, recorded, service_of, trace_of

SERVICES = ("gateway", "scheduler", "kvcache", "worker")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


async def test_every_service_adds_its_span_below_the_one_that_called(llama: Path) -> None:
    with recorded() as exporter:
        async with system(llama, "model.dtype=float32") as http:
            await complete(http, [5] * 40, {"traceparent": PARENT}, max_tokens=3)
            await complete(http, [5] * 40, {"traceparent": PARENT}, max_tokens=3, n=2)
            # A worker hears of a request's end with its next step.
            await complete(http, [6], max_tokens=1)
    spans = [span for span in exporter.get_finished_spans() if trace_of(span) == TRACE]
    found = {service: [span for span in spans if service_of(span) == service] for service in SERVICES}
    assert {service: len(each) for service, each in found.items()} == {
        "gateway": 2,
        "scheduler": 3,
        "kvcache": 3,
        "worker": 3,
    }
    for parent, child in (("gateway", "scheduler"), ("scheduler", "kvcache"), ("scheduler", "worker")):
        for span in found[child]:
            assert any(follows(span, caller) for caller in found[parent])
    assert Counter(value(span, "augury.hit_tokens") for span in found["kvcache"]) == {0: 1, 32: 2}
    assert [value(span, "augury.emitted_tokens") for span in found["worker"]] == [3] * 3
    assert [value(span, "augury.outcome") for span in found["scheduler"]] == ["length"] * 3
    assert all([event.name for event in span.events] == ["admitted"] for span in found["scheduler"])


def value(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {})[name]
