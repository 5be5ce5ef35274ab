"""The Grafana dashboard, made from queries over the metrics catalogue: `python -m deploy.dashboard` prints its JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_RANGE = "[$__rate_interval]"
_COLUMNS = 24
"""Widths in Grafana's grid."""
_HEIGHT = 8
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_HTTP = "augury_http_requests"
_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves over time. ``queries`` are PromQL by legend; ``unit`` is one of Grafana's."""

    title: str
    meaning: str = ""
    unit: str = "short"
    queries: Mapping[str, str]


def _rate(name: str, by: str = "", where: str = "") -> str:
    """Per second, of a counter of the gateways."""
    return f"sum{_by(by)}(rate({name}_total{where}{_RANGE}))"


def _worker(name: str) -> str:
    """A gauge of each worker: every gateway tells the same."""
    return f"max by (worker) ({name})"


def _worker_rate(name: str, by: str = "") -> str:
    """Per second, over all workers."""
    labels = f"worker, {by}" if by else "worker"
    return f"sum{_by(by)}(max by ({labels}) (rate({name}_total{_RANGE})))"


def _by(label: str) -> str:
    return f" by ({label}) " if label else ""


def _quantiles(name: str) -> dict[str, str]:
    """Of a histogram of the gateways."""
    return {
        legend: f"histogram_quantile({quantile}, sum by (le) (rate({name}_bucket{_RANGE})))"
        for legend, quantile in _QUANTILES.items()
    }


def _worker_quantiles(name: str) -> dict[str, str]:
    return {
        legend: f"histogram_quantile({quantile}, sum by (le) (max by (worker, le) (rate({name}_bucket{_RANGE}))))"
        for legend, quantile in _QUANTILES.items()
    }


def _share(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def _mean(name: str) -> str:
    """Of a histogram of the gateways."""
    return _share(f"sum(rate({name}_sum{_RANGE}))", f"sum(rate({name}_count{_RANGE}))")


TRAFFIC = (
    Panel(
        title="HTTP requests",
        unit="reqps",
        queries={"{{status}}": _rate(_HTTP, by="status", where='{route=~"/v1/.*"}')},
    ),
    Panel(
        title="Tokens",
        meaning="As clients are told in usage",
        unit="short",
        queries={
            "prompt": _rate("augury_prompt_tokens"),
            "of these cached": _rate("augury_cached_tokens"),
            "generated": _rate("augury_generation_tokens"),
        },
    ),
    Panel(
        title="Requests",
        queries={"running": "max(augury_running_requests)", "waiting": "max(augury_waiting_requests)"},
    ),
)
ERRORS = (
    Panel(
        title="Failed HTTP requests",
        unit="percentunit",
        queries={
            "server (5xx)": _share(_rate(_HTTP, where='{status=~"5.."}'), _rate(_HTTP)),
            "refused (429)": _share(_rate(_HTTP, where='{status="429"}'), _rate(_HTTP)),
        },
    ),
    Panel(
        title="How choices end",
        unit="ops",
        queries={"{{outcome}}": _rate("augury_generations", by="outcome")},
    ),
    Panel(
        title="What gets in the way",
        unit="ops",
        queries={
            "preemptions": _worker_rate("augury_worker_preemptions"),
            "hits not recognised": _worker_rate("augury_worker_refused_hits"),
        },
    ),
)
LATENCY = (
    Panel(title="Time to the first token", unit="s", queries=_quantiles("augury_time_to_first_token_seconds")),
    Panel(title="Between deliveries of tokens", unit="s", queries=_quantiles("augury_inter_token_seconds")),
    Panel(title="Whole request", unit="s", queries=_quantiles("augury_request_seconds")),
    Panel(title="In the queue", unit="s", queries=_quantiles("augury_request_queue_seconds")),
    Panel(
        title="Where the time goes",
        meaning="Mean of each stage of a choice",
        unit="s",
        queries={stage: _mean(f"augury_request_{stage}_seconds") for stage in ("queue", "prefill", "decode")},
    ),
    Panel(
        title="Tokens of a choice",
        meaning="Means",
        queries={
            "prompt": _mean("augury_request_prompt_tokens"),
            "generated": _mean("augury_request_generation_tokens"),
        },
    ),
)
WORKERS = (
    Panel(
        title="Workers",
        queries={
            "take requests": "max(augury_ready_workers)",
            "are leaving": f"sum({_worker('augury_worker_draining')})",
        },
    ),
    Panel(
        title="Tokens in the queue",
        meaning="Yet to be computed; what the pool is scaled by",
        queries={"{{worker}}": _worker("augury_worker_queue_tokens")},
    ),
    Panel(title="Waiting requests", queries={"{{worker}}": _worker("augury_worker_waiting_requests")}),
    Panel(title="Running requests", queries={"{{worker}}": _worker("augury_worker_running_requests")}),
    Panel(
        title="Iterations",
        unit="ops",
        queries={"{{worker}}": f"max by (worker) (rate(augury_worker_iterations_total{_RANGE}))"},
    ),
    Panel(title="Tokens of an iteration", queries=_worker_quantiles("augury_worker_iteration_tokens")),
)
KV = (
    Panel(
        title="KV blocks in use", unit="percentunit", queries={"{{worker}}": _worker("augury_worker_kv_usage_ratio")}
    ),
    Panel(
        title="Prefix cache hits",
        meaning="Share of the tokens looked up",
        unit="percentunit",
        queries={
            "hit": _share(
                _worker_rate("augury_worker_prefix_hit_tokens"), _worker_rate("augury_worker_prefix_query_tokens")
            )
        },
    ),
    Panel(
        title="Why hits end short of the prompt",
        unit="ops",
        queries={"{{reason}}": _worker_rate("augury_prefix_cache_misses", by="reason")},
    ),
)
SPECULATION = (
    Panel(
        title="Drafts",
        meaning="For each step of a request that verifies some",
        queries={
            "verified (depth)": _share(
                _worker_rate("augury_worker_draft_tokens"), _worker_rate("augury_worker_drafts")
            ),
            "accepted": _share(_worker_rate("augury_worker_accepted_tokens"), _worker_rate("augury_worker_drafts")),
        },
    ),
    Panel(
        title="Acceptance by position",
        meaning="Share of the steps with drafts in which the draft at this position, the first being 0, became text",
        unit="percentunit",
        queries={
            "{{position}}": f"{_worker_rate('augury_worker_accepted_tokens_per_position', by='position')} "
            f"/ ignoring (position) group_left () {_worker_rate('augury_worker_drafts')}"
        },
    ),
    Panel(
        title="Drafts accepted in a step",
        meaning="Mean, by worker",
        queries={
            "{{worker}}": f"max by (worker) (rate(augury_worker_accepted_length_sum{_RANGE})) "
            f"/ max by (worker) (rate(augury_worker_accepted_length_count{_RANGE}))"
        },
    ),
)
ROWS: Mapping[str, Sequence[Panel]] = {
    "Traffic": TRAFFIC,
    "Errors": ERRORS,
    "Latency": LATENCY,
    "Workers": WORKERS,
    "KV cache": KV,
    "Speculation": SPECULATION,
}
_PER_LINE = 3


def dashboard() -> dict[str, Any]:
    """As Grafana imports it. Its variable ``source`` is the Prometheus that is asked."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(_row(title, top, len(panels) + 1))
        top += 1
        for start in range(0, len(row), _PER_LINE):
            for column, panel in enumerate(row[start : start + _PER_LINE]):
                panels.append(_panel(panel, column, top, len(panels) + 1))
            top += _HEIGHT
    return {
        "uid": "augury",
        "title": "Augury",
        "tags": ["augury"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _row(title: str, top: int, number: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, column: int, top: int, number: int) -> dict[str, Any]:
    width = _COLUMNS // _PER_LINE
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": {"x": column * width, "y": top, "w": width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
