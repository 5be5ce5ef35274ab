"""What docker-compose.yml, the Dockerfile and .dockerignore name exists in the code; containers stay confined."""

import ast
import asyncio
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from augury import config, process, rpc
from augury.config import Settings
from deploy import bootstrap
from gateway import server
from gateway.app import create_app
from gateway.model import ServedModel
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.tiny import write_model
from worker_svc.model import smollm2

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OVERRIDE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
"""Of the stack that a test is about."""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOST_NAME = "0123456789ab"
DEFAULT_STOP_S = 10
"""What Docker grants a container to stop, where nothing is said."""

MODULES = {"kvcache": "kvcache_svc", "scheduler": "scheduler_svc", "worker": "worker_svc", "gateway": "gateway"}
GRPC = ["kvcache", "scheduler", "worker"]
PUBLISHED = {"gateway": "127.0.0.1:${AUGURY_PORT:-8000}:8000", "grafana": "127.0.0.1:${AUGURY_GRAFANA_PORT:-3000}:3000"}


def merged(base: Any, override: Any) -> Any:
    """As Compose merges mappings; of lists the override has only new ones."""
    if not isinstance(base, dict):
        assert not isinstance(base, list)
        return override
    return base | {key: merged(base.get(key), value) for key, value in override.items()}


@pytest.fixture(params=["cpu", "gpu"], autouse=True)
def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test is about both stacks, that of the file alone and that with GPUs."""
    name: str = request.param
    if name == "gpu":
        monkeypatch.setattr(sys.modules[__name__], "SERVICES", merged(SERVICES, OVERRIDE["services"]))
    return name


@cache
def dockerfile() -> list[tuple[str, str]]:
    """(instruction, arguments) of every line, continued lines as one."""
    lines = re.sub(r"\\\n\s*", "", (ROOT / "deploy/docker/Dockerfile").read_text()).splitlines()
    instructions = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, arguments) for name, _, arguments in instructions]


def build_args(name: str) -> dict[str, str]:
    arguments: dict[str, str] = SERVICES[name]["build"].get("args", {})
    return arguments


def command(name: str) -> str:
    """As the container's shell sees it."""
    return " ".join(SERVICES[name]["command"]).replace("$$HOSTNAME", HOST_NAME)


def settings(name: str) -> Settings:
    """What a service of the stack reads. Raises ValueError for an unknown setting or a bad value."""
    env = {variable: value for variable, value in SERVICES[name]["environment"].items() if value is not None}
    return config.load(env=env, overrides=re.findall(r"--set (\S+)", command(name)))


@pytest.mark.parametrize("name", MODULES)
def test_each_service_runs_its_module_with_settings_that_exist(name: str) -> None:
    (module,) = re.findall(r"python -m (\w+)", command(name))
    assert module == MODULES[name]
    assert importlib.util.find_spec(f"{module}.__main__")
    settings(name)


def test_variables_taken_from_the_shell_are_settings() -> None:
    known = {config.ENV_PREFIX + entry.name.upper().replace(".", "__") for entry in config.entries()}
    assert {variable for name in MODULES for variable in SERVICES[name]["environment"]} <= known


@pytest.mark.parametrize("name", GRPC)
def test_a_service_listens_where_it_is_reached_and_probed(name: str) -> None:
    read = settings(name)
    addresses = {
        "kvcache": read.kvcache.address,
        "scheduler": read.scheduler.address,
        "worker": read.worker.address,
    }
    host, _, port = addresses[name].partition(":")
    assert host == (HOST_NAME if name == "worker" else name)
    assert SERVICES[name]["healthcheck"]["test"][-1] == port


def test_the_registry_is_the_redis_of_the_stack() -> None:
    url = urlsplit(settings("kvcache").registry.url)
    assert (url.scheme, url.hostname, url.port) == ("redis", "redis", 6379)
    assert SERVICES["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]


async def test_the_probe_tells_whether_a_service_takes_new_work() -> None:
    listener = await rpc.listen("127.0.0.1:0")
    served = listener.address.rpartition(":")[2]
    assert await _probe(served) == 0
    await listener.set_ready(False)
    assert await _probe(served) != 0
    await listener.stop(0)
    assert await _probe(served) != 0


async def _probe(port: str) -> int:
    """Exit status of the health check on this machine, for a container."""
    code = SERVICES["worker"]["healthcheck"]["test"][3]
    here = "import socket; socket.gethostname = lambda: '127.0.0.1'\n"
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", here + code, port, stderr=subprocess.DEVNULL)
    return await run.wait()


def test_the_gateways_health_check_asks_a_route_at_its_port(tmp_path: Path) -> None:
    (url,) = re.findall(r"http://[^']+", SERVICES["gateway"]["healthcheck"]["test"][-1])
    model = ServedModel.load(write_model(tmp_path), "tiny")
    app = create_app(ScriptedBackend(lambda _: Script(tokens=[2])), model)
    routes = {getattr(route, "path", None) for route in app.routes}
    assert urlsplit(url).path in routes
    assert urlsplit(url).port == settings("gateway").gateway.port


def test_only_http_is_published_and_only_to_this_machine() -> None:
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        name: [port] for name, port in PUBLISHED.items()
    }
    assert PUBLISHED["gateway"].endswith(f":{settings('gateway').gateway.port}")


def test_monitoring_runs_only_where_it_is_asked_for() -> None:
    asked = {name for name, service in SERVICES.items() if service.get("profiles") == ["monitoring"]}
    assert asked == {"prometheus", "grafana"}
    assert not any("profiles" in SERVICES[name] for name in SERVICES.keys() - asked)


def test_prometheus_asks_the_gateway_where_its_metrics_are() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"gateway:{settings('gateway').gateway.port}"]}]


def test_grafana_finds_its_source_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((ROOT / "deploy/grafana/datasources.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((ROOT / "deploy/grafana/dashboards.yml").read_text())["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert str(Path(home).parent) == provider["options"]["path"]
    assert f"./deploy/k8s/components/monitoring/dashboard.json:{home}:ro" in SERVICES["grafana"]["volumes"]


def test_files_that_are_mounted_exist_and_named_volumes_are_declared() -> None:
    mounts = [mount.split(":") for service in SERVICES.values() for mount in service.get("volumes", [])]
    files = [mount for mount in mounts if mount[0].startswith("./")]
    assert len(files) == 4
    assert all((ROOT / mount[0]).is_file() and mount[2] == "ro" for mount in files)
    assert {mount[0] for mount in mounts if mount not in files} == COMPOSE["volumes"].keys()


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert "/tmp" in service["tmpfs"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    (user,) = [service["user"]] if "user" in service else [user for key, user in dockerfile() if key == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_base_images_are_pinned_to_a_release() -> None:
    built = {service.get("image") for service in SERVICES.values() if "build" in service}
    images = [service["image"] for service in SERVICES.values() if "image" in service and service["image"] not in built]
    bases = [arguments for key, arguments in dockerfile() if key == "FROM"]
    assert images and bases
    assert [image for image in images + bases if not re.search(r":v?\d+\.\d+\.\d+(-|$)", image)] == []


def test_the_model_volume_lies_over_the_cache_and_only_prepare_writes_it() -> None:
    (cache,) = (arguments.partition("=")[2] for key, arguments in dockerfile() if arguments.startswith("AUGURY_CACHE="))
    mounts = {name: [v for v in service.get("volumes", []) if "models" in v] for name, service in SERVICES.items()}
    read_only = [f"models:{cache}:ro"]
    expected = {"prepare": [f"models:{cache}"], "worker": read_only, "gateway": read_only}
    assert {name: found for name, found in mounts.items() if found} == expected


def test_the_model_is_prepared_before_it_is_read_and_is_the_one_served() -> None:
    assert command("prepare") == f"augury model prepare {smollm2.NAME}"
    assert "augury" in PYPROJECT["project"]["scripts"]
    assert SERVICES["prepare"]["image"] == SERVICES["worker"]["image"]
    for name in ("worker", "gateway"):
        assert settings(name).model.path == smollm2.NAME
        assert SERVICES[name]["depends_on"]["prepare"] == {"condition": "service_completed_successfully"}


def test_the_weights_are_those_that_prepare_reads() -> None:
    assert build_args("worker")["MODEL_PACKAGE"] == f"{smollm2.PACKAGE}=={smollm2.VERSION}" == bootstrap.MODEL_PACKAGE


@pytest.mark.parametrize("name", MODULES)
def test_an_image_has_what_its_service_imports_and_torch_only_the_workers(name: str, stack: str) -> None:
    project = PYPROJECT["project"]
    extras = build_args(name)["EXTRA"].split(",")
    wanted = sum((project["optional-dependencies"][extra] for extra in extras), project["dependencies"])
    assert "telemetry" in extras
    installed = with_requirements(wanted)
    assert ("flashinfer-python" in installed) == (name == "worker" and stack == "gpu") == bool(kernels(name))
    imported = [owners for package in (MODULES[name], "proto/augury") for owners in distributions(ROOT / package)]
    assert imported and [owners for owners in imported if not owners & installed] == []
    assert ("torch" in installed) == (name == "worker")


def kernels(name: str) -> str | None:
    """What the image is to have of FlashInfer's kernels, which have no other way into it."""
    assert any("flashinfer install-jit-cache-wheel" in arguments for key, arguments in dockerfile() if key == "RUN")
    return build_args(name).get("KERNELS")


def with_requirements(wanted: list[str]) -> set[str]:
    """Names of the distributions that pip installs for ``wanted``; optional ones of theirs are left out."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        own = PYPROJECT["project"]["optional-dependencies"] if name == PYPROJECT["project"]["name"] else {}
        waiting += [Requirement(text) for extra in needed.extras for text in own.get(extra, [])]
        if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += [Requirement(text) for text in requirements(name)]
    return found


def requirements(name: str) -> list[str]:
    """Of a distribution that is installed here; nothing is known of what only machines with a GPU have."""
    if name == "flashinfer-python":
        return []
    return importlib.metadata.requires(name) or []


def distributions(folder: Path) -> Iterator[set[str]]:
    """For each import at the top of a module in ``folder``, the distributions that it may come from."""
    owners = importlib.metadata.packages_distributions()
    for file in folder.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in {module.split(".")[0] for module in modules}:
                found = {canonicalize_name(owner) for owner in owners.get(top, [])} - {"augury"}
                if found:
                    yield found


def test_build_arguments_are_declared_and_extras_exist() -> None:
    declared = {arguments.partition("=")[0] for key, arguments in dockerfile() if key == "ARG"}
    built = [name for name, service in SERVICES.items() if "build" in service]
    assert sorted(built) == sorted(MODULES)
    for name in built:
        assert set(build_args(name)) <= declared
        assert (ROOT / SERVICES[name]["build"]["dockerfile"]).is_file()


def test_the_build_context_holds_what_the_wheel_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {package.split("/")[0] for package in packages} | {"pyproject.toml", PYPROJECT["project"]["readme"]}
    assert "*" in lines
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == needed


@pytest.mark.parametrize("name", MODULES)
def test_services_get_the_time_they_take_to_stop(name: str) -> None:
    read, granted = settings(name), SERVICES[name].get("stop_grace_period", f"{DEFAULT_STOP_S}s")
    needed = {
        "gateway": read.gateway.drain_seconds + server._GRACE_S,
        "kvcache": process.STOP_GRACE_S,
        "scheduler": read.service.drain_seconds + process.STOP_GRACE_S,
        "worker": read.service.drain_seconds + process.STOP_GRACE_S,
    }[name]
    assert needed <= int(granted.removesuffix("s")) <= needed + 5


def test_a_gpu_worker_gets_its_gpu_and_keeps_to_it(stack: str) -> None:
    if stack == "cpu":
        assert "deploy" not in SERVICES["worker"] and settings("worker").worker.device == "cpu"
        return
    (device,) = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    read = settings("worker")
    assert (read.worker.device, read.worker.attention, read.model.dtype) == ("cuda", "auto", "bfloat16")
    assert read.kv.memory_mb is None
    assert build_args("worker")["PIP_EXTRA_INDEX_URL"] == ""
    assert SERVICES["worker"]["image"] != COMPOSE["services"]["worker"]["image"]


def test_the_override_adds_no_service() -> None:
    assert OVERRIDE.keys() == {"services"} and OVERRIDE["services"].keys() <= COMPOSE["services"].keys()
