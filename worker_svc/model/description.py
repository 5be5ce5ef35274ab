"""The architecture of a checkpoint, parsed and checked from its ``config.json``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from worker_svc.model.policy import Mtp, layer_windows, parse_mtp

ARCHITECTURE = "LlamaForCausalLM"

_Size = Annotated[int, Meta(ge=1)]
_Positive = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the long rotary wavelengths; lengths are in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding over the whole head; ``scaling`` None is the plain form."""

    theta: float
    scaling: Llama3Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shapes and constants of a Llama-family decoder. ``num_heads`` is a multiple of ``num_kv_heads``.

    ``windows`` names the layers that see only so many tokens, themselves included. ``mtp`` None: there are no modules.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    max_positions: int
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    windows: Mapping[int, int] = field(default_factory=dict)
    mtp: Mtp | None = None


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a Hugging Face ``config.json`` that matters here, with Hugging Face's defaults."""

    architectures: list[str]
    vocab_size: _Size
    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    hidden_act: str = "silu"
    rms_norm_eps: _Positive = 1e-6
    max_position_embeddings: _Size = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: _Positive = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None
    layer_types: list[str] | None = None
    sliding_window: _Size | None = None
    num_nextn_predict_layers: Annotated[int, Meta(ge=0)] = 0
    mtp: dict[str, Any] | None = None


class _RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    rope_type: str = "default"
    rope_theta: _Positive
    partial_rotary_factor: float = 1.0
    factor: _Positive | None = None
    low_freq_factor: _Positive | None = None
    high_freq_factor: _Positive | None = None
    original_max_position_embeddings: _Size | None = None


def read_architecture(path: Path) -> Architecture:
    """The architecture of the model in folder ``path``. Raises ValueError where it is not one that runs here."""
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"{path} is no model folder: it has no config.json")
    try:
        return parse_architecture(json.loads(file.read_text()))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def parse_architecture(values: Mapping[str, Any]) -> Architecture:
    """The architecture that the parsed ``config.json`` describes. Raises ValueError naming what is unsupported."""
    config = msgspec.convert(values, _Config)
    _check(config)
    num_kv_heads = config.num_key_value_heads or config.num_attention_heads
    if config.num_attention_heads % num_kv_heads:
        raise ValueError(f"{config.num_attention_heads} query heads cannot share {num_kv_heads} KV heads")
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    if head_dim % 2:
        raise ValueError(f"rotary embedding needs an even head_dim, not {head_dim}")
    return Architecture(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        rope=_rope(config),
        max_positions=config.max_position_embeddings,
        tied_embeddings=config.tie_word_embeddings,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        windows=layer_windows("layer_types", config.layer_types, config.num_hidden_layers, config.sliding_window),
        mtp=parse_mtp(config.num_nextn_predict_layers, config.mtp, config.sliding_window),
    )


def _check(config: _Config) -> None:
    if config.architectures != [ARCHITECTURE]:
        raise ValueError(f"architecture {config.architectures} is not supported, only {ARCHITECTURE} is")
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act {config.hidden_act!r} is not supported, only 'silu' is")
    if config.quantization_config is not None:
        raise ValueError(f"quantized weights are not supported: {config.quantization_config.get('quant_method')!r}")


def _rope(config: _Config) -> Rope:
    # Up to transformers 4: rope_theta beside rope_scaling, whose kind may be called "type". Since 5: one dictionary.
    values = {"rope_theta": config.rope_theta} | (config.rope_parameters or config.rope_scaling or {})
    if "type" in values:
        values = {"rope_type": values["type"]} | values
    rope = msgspec.convert(values, _RopeConfig)
    if rope.partial_rotary_factor != 1.0:
        raise ValueError(f"partial_rotary_factor {rope.partial_rotary_factor} is not supported, only 1.0 is")
    if rope.rope_type == "default":
        return Rope(theta=rope.rope_theta)
    if rope.rope_type == "llama3":
        return Rope(theta=rope.rope_theta, scaling=_llama3(rope))
    raise ValueError(f"rope type {rope.rope_type!r} is not supported, only 'default' and 'llama3' are")


def _llama3(rope: _RopeConfig) -> Llama3Scaling:
    low, high, length = rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings
    if rope.factor is None or low is None or high is None or length is None:
        raise ValueError(
            "rope type 'llama3' needs factor, low_freq_factor, high_freq_factor and original_max_position_embeddings"
        )
    if low >= high:
        raise ValueError(f"low_freq_factor {low} must be below high_freq_factor {high}")
    return Llama3Scaling(factor=rope.factor, low_freq_factor=low, high_freq_factor=high, original_length=length)
