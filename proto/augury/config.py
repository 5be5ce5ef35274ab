"""Every setting, typed and documented once. Unknown names are errors; later sources win: file, environment, options.

A setting has a dotted name (``kv.block_size``), a variable (``AUGURY_KV__BLOCK_SIZE``) and a place in a TOML file.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

ENV_PREFIX = "AUGURY_"

Depth = Annotated[str, Meta(pattern="^(auto|[0-9]{1,3})$")]
Device = Annotated[str, Meta(pattern="^(auto|cpu|cuda(:[0-9]{1,2})?)$")]
HttpUrl = Annotated[str, Meta(pattern="^https?://.")]
AtLeast1 = Annotated[int, Meta(ge=1)]
AtLeast2 = Annotated[int, Meta(ge=2)]


def doc(meaning: str, *, ge: float | None = None, le: float | None = None, min_length: int | None = None) -> Meta:
    """What a setting means, for people, and the bounds it is checked against."""
    if min_length is not None:
        return Meta(description=meaning, min_length=min_length)
    return Meta(description=meaning, ge=ge, le=le)


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ModelSettings(_Section, frozen=True):
    path: Annotated[str, doc("Folder of the model, or the name of a prepared one")] = "smollm2"
    name: Annotated[str | None, doc("Name clients ask for; unset: the folder's name")] = None
    dtype: Annotated[Literal["bfloat16", "float32"], doc("Type of weights and KV")] = "bfloat16"
    max_len: Annotated[AtLeast2 | None, doc("Context window in tokens; unset: the model's own")] = None


class KvSettings(_Section, frozen=True):
    block_size: Annotated[int, doc("Tokens in a KV block", ge=1, le=1024)] = 16
    num_blocks: Annotated[AtLeast2 | None, doc("Blocks of a worker; unset: from kv.memory_mb")] = None
    memory_mb: Annotated[
        AtLeast1 | None,
        doc("Memory for KV in MiB, where kv.num_blocks is unset; unset: 2048, on CUDA 0.9 of what is free less 1024"),
    ] = None
    hybrid: Annotated[
        Literal["auto", "off"], doc("Whether layers behind a window free the KV that it has passed; off: they keep it")
    ] = "auto"
    prefix_caching: Annotated[bool, doc("Reuse the KV of equal prefixes")] = True
    key_lookahead: Annotated[
        Literal["auto", "off"], doc("Whether keys cover the tokens that draft KV depends on; off: hits end earlier")
    ] = "auto"


class SchedulerSettings(_Section, frozen=True):
    address: Annotated[str, doc("Where scheduler_svc listens and is reached")] = "127.0.0.1:7601"
    addresses: Annotated[
        str | None, doc("Where all schedulers are reached, with commas between; unset: scheduler.address")
    ] = None
    max_batched_tokens: Annotated[int, doc("Token budget of one iteration", ge=1)] = 512
    max_running: Annotated[int, doc("Requests in one worker's batch", ge=1, le=4096)] = 64
    policy: Annotated[
        Literal["fair", "fcfs", "priority"],
        doc("Order of requests; fair: clients get equal shares, and priorities are within one client"),
    ] = "fair"
    silence_seconds: Annotated[float, doc("A worker that is silent for so long is given up", ge=2)] = 3.0
    stall_seconds: Annotated[float, doc("A worker that works at one step for so long is given up", ge=0.1)] = 30.0
    wait_seconds: Annotated[float, doc("Requests wait so long for a worker while there is none", ge=0)] = 60.0

    @property
    def reached_at(self) -> list[str]:
        """Where all schedulers are reached."""
        return [address.strip() for address in (self.addresses or self.address).split(",")]


class KvcacheSettings(_Section, frozen=True):
    address: Annotated[str, doc("Where kvcache_svc listens and is reached")] = "127.0.0.1:7602"


class WorkerSettings(_Section, frozen=True):
    address: Annotated[str, doc("Where this worker listens; port 0 picks a free one")] = "127.0.0.1:0"
    advertise: Annotated[str | None, doc("Address told to the scheduler; unset: the bound one")] = None
    id: Annotated[str | None, doc("Name of this worker; unset: a random one")] = None
    device: Annotated[Device, doc("Where the model runs: cpu, cuda, cuda:N; auto: cuda where there is one")] = "cpu"
    attention: Annotated[
        Literal["auto", "reference", "cpu", "flashinfer"],
        doc("Attention backend; auto: flashinfer on CUDA where it runs, else cpu, which is plain torch"),
    ] = "auto"
    threads: Annotated[AtLeast1 | None, doc("Forward pass's threads; unset: one per core, 1 for small models")] = None


class GatewaySettings(_Section, frozen=True):
    host: Annotated[str, doc("Address the HTTP server binds")] = "127.0.0.1"
    port: Annotated[int, doc("Port of the HTTP server; 0 picks a free one", ge=0, le=65535)] = 8000
    api_keys_file: Annotated[
        str | None, doc("File of API keys, one a line and its client's name behind it; unset: open to everybody")
    ] = None
    shared_cache_salt: Annotated[
        str | None, doc("The cache_salt under which all API keys share cached prefixes; unset: they never do")
    ] = None
    drain_seconds: Annotated[float, doc("Time that open answers get to end after SIGTERM", ge=0, le=86400)] = 25.0


class SpeculationSettings(_Section, frozen=True):
    depth: Annotated[Depth, doc("Drafts of a step: auto, or 0 up to the number of the model's MTP modules")] = "auto"


class RegistrySettings(_Section, frozen=True):
    url: Annotated[str | None, doc("Redis URL of the prefix registry; unset: memory")] = None
    key_prefix: Annotated[str, doc("Prefix of every Redis key", min_length=1)] = "augury"


class ServiceSettings(_Section, frozen=True):
    drain_seconds: Annotated[float, doc("Time that a scheduler or worker has after SIGTERM to hand over", ge=0)] = 25.0


class LogSettings(_Section, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], doc("Least level that is logged")] = "info"
    prompts: Annotated[bool, doc("Whether the gateway logs the text of prompts")] = False


class TelemetrySettings(_Section, frozen=True):
    otlp_endpoint: Annotated[
        HttpUrl | None, doc("Where traces go by OTLP over gRPC, as http://collector:4317; unset: there are none")
    ] = None
    sample_ratio: Annotated[
        float, doc("Share of traces to record, where the client's traceparent does not decide", ge=0, le=1)
    ] = 1.0


class Settings(_Section, frozen=True):
    model: ModelSettings = ModelSettings()
    kv: KvSettings = KvSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    kvcache: KvcacheSettings = KvcacheSettings()
    worker: WorkerSettings = WorkerSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    gateway: GatewaySettings = GatewaySettings()
    registry: RegistrySettings = RegistrySettings()
    service: ServiceSettings = ServiceSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()


class Entry(NamedTuple):
    """One setting, for the documentation."""

    name: str
    default: object
    meaning: str


def load(file: Path | None = None, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()) -> Settings:
    """Settings from a TOML file, then ``AUGURY_…`` variables of ``env``, then ``name=value`` overrides.

    Raises ValueError with the nearest right name for an unknown one, and with the reason for a bad value.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_flatten(_read_toml(file)))
    for variable, value in sorted((env or {}).items()):
        if variable.startswith(ENV_PREFIX) and "__" in variable:
            values[variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")] = value
    for override in overrides:
        name, sep, value = override.partition("=")
        if not sep:
            raise ValueError(f"expected name=value, got {override!r}")
        values[name.strip()] = value.strip()
    return _build(values)


def entries() -> Iterator[Entry]:
    """Every setting in the order of its declaration."""
    for section, kind in get_type_hints(Settings).items():
        hints = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            *_, meta = (extra for extra in hints[field.name].__metadata__ if isinstance(extra, Meta))
            yield Entry(f"{section}.{field.name}", field.default, meta.description or "")


def _build(values: Mapping[str, Any]) -> Settings:
    known = [entry.name for entry in entries()]
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise ValueError(f"unknown setting {name!r}; the nearest is {near[0]!r}")
        section, field = name.split(".")
        nested.setdefault(section, {})[field] = value
    try:
        return msgspec.convert(nested, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"bad setting: {str(error).replace('$.', '')}") from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the settings file {file}: {error}") from None


def _flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, fields in tree.items():
        if not isinstance(fields, Mapping):
            raise ValueError(f"unknown setting {section!r}; settings live in sections, as [kv]")
        for field, value in fields.items():
            yield f"{section}.{field}", value
