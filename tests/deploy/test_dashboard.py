"""Metrics' page, dashboard and alerts are made from the catalogue, and what they ask for is exposed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import dashboard, metrics
from gateway import catalogue
from gateway.catalogue import Kind, Metric

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy/k8s/components/monitoring"
LINE_PANELS = [panel for panel in dashboard.dashboard()["panels"] if panel["type"] == "timeseries"]
QUERIES = [(panel["title"], target) for panel in LINE_PANELS for target in panel["targets"]]
RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
]
SUFFIXES = {
    Kind.COUNTER: ("_total",),
    Kind.GAUGE: ("",),
    Kind.HISTOGRAM: ("_bucket", "_sum", "_count"),
}


def samples(metric: Metric) -> dict[str, set[str]]:
    """Labels of every name under which Prometheus keeps ``metric``."""
    return {
        metric.name + suffix: {*metric.labels} | ({"le"} if suffix == "_bucket" else set())
        for suffix in SUFFIXES[metric.kind]
    }


KNOWN = {name: labels for metric in catalogue.METRICS for name, labels in samples(metric).items()}


def command(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_the_page_of_metrics_is_what_the_command_prints() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == command("deploy.cli", "metrics")
    assert all(f"`{metrics.exposed(metric.name, metric.kind)}`" in metrics.page() for metric in catalogue.METRICS)


def test_the_dashboard_file_is_what_the_command_prints() -> None:
    assert (MONITORING / "dashboard.json").read_text() == command("deploy.dashboard")


def test_grafana_finds_the_dashboard_in_the_cluster() -> None:
    (made,) = yaml.safe_load((MONITORING / "kustomization.yaml").read_text())["configMapGenerator"]
    assert made["files"] == ["dashboard.json"]
    assert made["options"]["labels"] == {"grafana_dashboard": "1"}


@pytest.mark.parametrize(("title", "target"), QUERIES, ids=lambda case: case if isinstance(case, str) else "")
def test_a_query_asks_for_metrics_and_labels_that_exist(title: str, target: dict[str, str]) -> None:
    check(target["expr"])
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert legend <= grouped(target["expr"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]


def check(query: str) -> None:
    names = re.findall(r"\baugury_\w+", query)
    assert names and [name for name in names if name not in KNOWN] == []
    labels = set().union(*(KNOWN[name] for name in names))
    matched = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
    assert grouped(query) | matched <= labels
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    # A counter is of use as a rate only.
    for name in names:
        if name.endswith(("_total", "_bucket", "_sum", "_count")):
            assert re.search(rf"rate\({name}\b", query)


def grouped(query: str) -> set[str]:
    """Labels that aggregations keep."""
    return {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}


def test_every_metric_of_a_worker_is_read_alike_from_any_number_of_gateways() -> None:
    names = {name for metric in (*catalogue.WORKER, *catalogue.SCHEDULER) for name in samples(metric)}
    for _, target in QUERIES:
        for name in re.findall(r"\baugury_\w+", target["expr"]):
            if name in names:
                assert re.search(rf"max(?: by \([^)]*\) )?\((?:rate\()?{name}\b", target["expr"])


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard.dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
    numbers = [panel["id"] for panel in dashboard.dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)


NOT_SHOWN = {
    "augury_worker_ready",
    "augury_worker_kv_info",
    "augury_worker_kv_blocks",
    "augury_worker_kv_available_blocks",
    "augury_worker_lora_info",
}


def test_every_other_gauge_is_on_the_dashboard() -> None:
    shown = {name for _, target in QUERIES for name in re.findall(r"\baugury_\w+", target["expr"])}
    gauges = {metric.name for metric in catalogue.METRICS if metric.kind is Kind.GAUGE}
    assert gauges - shown == NOT_SHOWN
