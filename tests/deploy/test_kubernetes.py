"""The Kubernetes manifests are valid, agree with one another, and name only what exists in the code."""

import asyncio
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from augury import config, rpc
from gateway import catalogue
from gateway.app import create_app
from gateway.model import ServedModel
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.tiny import write_model

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
BIN = Path(sys.executable).parent
VERSIONS = ("1.30", "1.34", "1.37")
"""Oldest with a sleeping preStop by default, and newer ones."""
OVERLAYS = sorted(path.parent for path in K8S.glob("overlays/*/kustomization.yaml"))
WORKLOADS = ("Deployment", "StatefulSet")
CUSTOM = {"ScaledObject", "ServiceMonitor", "PrometheusRule", "InferencePool"}
"""Kinds that a cluster has only with the operator they belong to; their schemas are not Kubernetes'."""
PROGRAMS = {"gateway": "gateway", "scheduler": "scheduler_svc", "kvcache": "kvcache_svc", "worker": "worker_svc"}

Object = dict[str, Any]


@cache
def built(overlay: Path) -> str:
    return subprocess.run([BIN / "kubectl", "kustomize", overlay], capture_output=True, text=True, check=True).stdout


def objects(overlay: Path) -> list[Object]:
    return [item for item in yaml.safe_load_all(built(overlay)) if item]


def everything() -> list[Object]:
    """Every object of every overlay and component."""
    texts = [path.read_text() for path in K8S.glob("components/*/*.yaml") if path.name != "kustomization.yaml"]
    parts = [item for text in texts for item in yaml.safe_load_all(text)]
    return parts + [item for overlay in OVERLAYS for item in objects(overlay)]


def workloads() -> list[tuple[str, Object]]:
    found = [(f"{o.name}/{i['metadata']['name']}", i) for o in OVERLAYS for i in objects(o) if i["kind"] in WORKLOADS]
    assert len(found) >= 5 * len(OVERLAYS)
    return found


def services() -> list[tuple[str, Object]]:
    """Workloads that run a program of this repository."""
    return [(name, item) for name, item in workloads() if item["metadata"]["name"] in PROGRAMS]


def container(item: Object) -> Object:
    (only,) = item["spec"]["template"]["spec"]["containers"]
    main: Object = only
    return main


def environment(overlay: Path, item: Object) -> dict[str, str]:
    maps = {m["metadata"]["name"]: m["data"] for m in objects(overlay) if m["kind"] == "ConfigMap"}
    values: dict[str, str] = {}
    for source in container(item).get("envFrom", []):
        values |= maps[source["configMapRef"]["name"]]
    return values | {entry["name"]: entry.get("value", "10.1.2.3") for entry in container(item).get("env", [])}


def settings_of(name: str, item: Object) -> config.Settings:
    values = environment(K8S / "overlays" / name.split("/")[0], item)
    return config.load(env={key: value.replace("$(POD_IP)", "10.1.2.3") for key, value in values.items()})


def ids(case: object) -> str:
    return case if isinstance(case, str) else ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_manifests_pass_strict_schema_validation(overlay: Path, version: str, tmp_path: Path) -> None:
    plain = [item for item in objects(overlay) if item["kind"] not in CUSTOM]
    assert len(plain) > 15
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(plain))
    command = [str(BIN / "kubernetes-validate"), "--strict", "--quiet", "-k", version, str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_strict_validation_can_fail(tmp_path: Path) -> None:
    wrong = objects(OVERLAYS[0])[0] | {"nonsense": 1}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    command = [str(BIN / "kubernetes-validate"), "--strict", str(tmp_path / "wrong.yaml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("component", sorted(K8S.glob("components/*")), ids=lambda path: path.name)
def test_every_component_builds_on_the_base(component: Path, tmp_path: Path) -> None:
    overlay = K8S / f".test-{component.name}-{tmp_path.name}"
    overlay.mkdir()
    try:
        text = {"resources": ["../base"], "components": [f"../components/{component.name}"]}
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(text))
        result = subprocess.run([BIN / "kubectl", "kustomize", overlay], capture_output=True, text=True, check=False)
    finally:
        (overlay / "kustomization.yaml").unlink()
        overlay.rmdir()
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("name", "item"), workloads(), ids=ids)
def test_a_workload_selects_its_own_pods(name: str, item: Object) -> None:
    wanted = item["spec"]["selector"]["matchLabels"]
    labels = item["spec"]["template"]["metadata"]["labels"]
    assert wanted.items() <= labels.items()


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_selectors_find_pods_and_named_ports_exist(overlay: Path) -> None:
    pods = [item["spec"]["template"] for item in objects(overlay) if item["kind"] in WORKLOADS]
    for item in objects(overlay):
        for selector, ports in selections(item):
            found = [pod for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]
            assert found, f"{item['kind']} {item['metadata']['name']} selects nothing"
            open_ports = {p["name"] for pod in found for c in pod["spec"]["containers"] for p in c.get("ports", [])}
            assert set(ports) <= open_ports, f"{item['kind']} {item['metadata']['name']}"


def selections(item: Object) -> Iterator[tuple[Object, list[str]]]:
    """Each selector of an object, with the names of the ports that it expects behind it."""
    spec = item.get("spec", {})
    if item["kind"] == "Service":
        yield spec["selector"], [port["targetPort"] for port in spec["ports"]]
    if item["kind"] == "PodDisruptionBudget":
        yield spec["selector"]["matchLabels"], []
    if item["kind"] == "NetworkPolicy":
        ports = [port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]]
        yield spec["podSelector"]["matchLabels"], ports
        for rule in (*spec.get("ingress", []), *spec.get("egress", [])):
            for peer in (*rule.get("from", []), *rule.get("to", [])):
                yield peer["podSelector"]["matchLabels"], []


@pytest.mark.parametrize(("name", "item"), services(), ids=ids)
def test_every_setting_exists_and_has_a_value_it_can_have(name: str, item: Object) -> None:
    settings_of(name, item)


@pytest.mark.parametrize(("name", "item"), services(), ids=ids)
def test_a_container_runs_its_program_where_its_port_is(name: str, item: Object) -> None:
    program = PROGRAMS[item["metadata"]["name"]]
    assert container(item)["command"] == ["python", "-m", program]
    assert importlib.util.find_spec(program) is not None
    (port,) = (entry["containerPort"] for entry in container(item)["ports"])
    settings = settings_of(name, item)
    listening = {
        "gateway": f"{settings.gateway.host}:{settings.gateway.port}",
        "scheduler": settings.scheduler.address,
        "kvcache": settings.kvcache.address,
        "worker": settings.worker.address,
    }[item["metadata"]["name"]]
    assert listening.rpartition(":")[2] == str(port)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_addresses_lead_to_services_of_these_manifests(overlay: Path) -> None:
    found = objects(overlay)
    names = {s["metadata"]["name"]: {p["port"] for p in s["spec"]["ports"]} for s in found if s["kind"] == "Service"}
    scheduler = next(item for item in found if item["kind"] == "StatefulSet")
    pods = [f"scheduler-{index}.{scheduler['spec']['serviceName']}" for index in range(scheduler["spec"]["replicas"])]
    for name, item in services():
        settings = settings_of(name, item)
        assert settings.registry.url == "redis://redis:6379/0" and 6379 in names["redis"]
        assert settings.scheduler.addresses == ",".join(f"{pod}:7601" for pod in pods)
        if item["metadata"]["name"] != "kvcache":
            host, _, port = settings.kvcache.address.partition(":")
            assert int(port) in names[host]


@pytest.mark.parametrize(("name", "item"), services(), ids=ids)
def test_probes_ask_what_the_program_answers(name: str, item: Object, tmp_path: Path) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(item)["ports"]}
    probes = {kind: container(item)[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
    for kind, probe in probes.items():
        if "grpc" in probe:
            assert probe["grpc"]["port"] in ports.values()
            assert probe["grpc"].get("service") == (rpc.READY if kind == "readiness" else None)
        else:
            assert probe["httpGet"]["port"] in ports
            assert probe["httpGet"]["path"] in gateway_paths(tmp_path)


def gateway_paths(folder: Path) -> set[str]:
    async def routes() -> set[str]:
        model = ServedModel.load(write_model(folder), "tiny")
        app = create_app(ScriptedBackend(lambda _: Script(tokens=[])), model)
        return {getattr(route, "path", "") for route in app.routes}

    return asyncio.run(routes())


@pytest.mark.parametrize(("name", "item"), services(), ids=ids)
def test_the_grace_period_covers_the_drain(name: str, item: Object) -> None:
    settings = settings_of(name, item)
    drains = {"gateway": settings.gateway.drain_seconds, "kvcache": 0.0}
    drain = drains.get(item["metadata"]["name"], settings.service.drain_seconds)
    before = container(item).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    grace = item["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert before + drain + 5 <= grace <= before + drain + 15


@pytest.mark.parametrize(("name", "item"), workloads(), ids=ids)
def test_pods_are_confined(name: str, item: Object) -> None:
    pod = item["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for each in (*pod["containers"], *pod.get("initContainers", [])):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        wanted, most = each["resources"]["requests"], each["resources"]["limits"]
        assert {"cpu", "memory"} <= wanted.keys() and "memory" in most
        assert mebibytes(wanted["memory"]) <= mebibytes(most["memory"])
        assert re.search(r":[^:/]+$", each["image"]) and not each["image"].endswith(":latest")


def test_gpu_workers_have_one_gpu_each_also_while_they_are_replaced() -> None:
    def workers(overlay: str) -> Object:
        found = objects(K8S / "overlays" / overlay)
        return next(item for item in found if (item["kind"], item["metadata"]["name"]) == ("Deployment", "worker"))

    gpu, cpu = workers("gpu"), workers("cpu")
    for part in ("requests", "limits"):
        assert container(gpu)["resources"][part]["nvidia.com/gpu"] == "1"
    assert gpu["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    (toleration,) = gpu["spec"]["template"]["spec"]["tolerations"]
    assert toleration == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    settings = settings_of("gpu/worker", gpu)
    assert (settings.worker.device, settings.worker.attention, settings.model.dtype) == ("cuda", "auto", "bfloat16")
    assert settings.kv.memory_mb is settings.kv.num_blocks is None
    images = {each["image"] for each in pod_containers(gpu)}
    assert len(images) == 1 and images.isdisjoint(each["image"] for each in pod_containers(cpu))
    grace = "terminationGracePeriodSeconds"
    assert gpu["spec"]["template"]["spec"][grace] == cpu["spec"]["template"]["spec"][grace]
    assert "nvidia" not in yaml.safe_dump(cpu)


def pod_containers(item: Object) -> list[Object]:
    spec = item["spec"]["template"]["spec"]
    return [*spec["containers"], *spec["initContainers"]]


def mebibytes(quantity: str) -> int:
    number, unit = int(quantity[:-2]), quantity[-2:]
    return number * {"Mi": 1, "Gi": 1024}[unit]


def test_metrics_that_scale_and_alert_are_in_the_catalogue() -> None:
    suffixes = {catalogue.Kind.COUNTER: "_total", catalogue.Kind.GAUGE: "", catalogue.Kind.HISTOGRAM: "_bucket"}
    known = {metric.name + suffixes[metric.kind] for metric in catalogue.METRICS}
    named = set(re.findall(r"augury_\w+", yaml.safe_dump_all(everything())))
    assert len(named) > 5
    assert named <= known
