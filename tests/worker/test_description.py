"""config.json is read in all its forms, and what does not run here is refused by name."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.tiny import save_llama
from worker_svc.engine import Engine, EngineOptions
from worker_svc.kv import bytes_per_block
from worker_svc.model.description import Architecture, Llama3Scaling, Rope, parse_architecture, read_architecture
from worker_svc.model.groups import make_layout
from worker_svc.model.policy import ChainKind, Policy
from worker_svc.model.weights import fingerprint

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 1e5,
}
LLAMA3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 128}

MTP = {
    "chain": "chained",
    "concat": "hidden_embed",
    "target_hidden": "pre_norm",
    "chain_hidden": "pre_norm",
    "out_norm": "none",
    "head": "shared",
}


def parse(**changes: Any) -> Architecture:
    return parse_architecture({name: value for name, value in (CONFIG | changes).items() if value is not ...})


def test_what_a_config_leaves_out_follows_from_the_rest() -> None:
    architecture = parse(num_key_value_heads=...)
    assert (architecture.num_kv_heads, architecture.head_dim, architecture.tied_embeddings) == (8, 8, False)


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_both_spellings_of_rope_are_read(kind: str) -> None:
    scaled = Rope(
        theta=1e5,
        scaling=Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_length=128),
    )
    assert parse(rope_scaling={kind: "llama3"} | LLAMA3).rope == scaled
    new_style = {"rope_type": "llama3", "rope_theta": 1e5} | LLAMA3
    assert parse(rope_theta=..., rope_parameters=new_style).rope == scaled
    assert parse(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope == Rope(theta=7.0)
    assert parse(rope_scaling=None).rope == Rope(theta=1e5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "yarn"),
        ({"rope_scaling": {"type": "llama3", "factor": 2}}, "low_freq_factor"),
        ({"rope_scaling": {"type": "llama3"} | LLAMA3 | {"low_freq_factor": 4}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"head_dim": 7}, "7"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": "100"}, "vocab_size"),
        ({"vocab_size": ...}, "vocab_size"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"layer_types": ["full_attention"] * 2}, "2 entries for 3 layers"),
        ({"layer_types": ["full_attention", "full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "no sliding_window"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers"),
        ({"num_nextn_predict_layers": 1, "mtp": {"chain": "chained"}}, "concat"),
        ({"num_nextn_predict_layers": 1, "mtp": MTP | {"chain": "tree"}}, "tree"),
        ({"num_nextn_predict_layers": 1, "mtp": MTP | {"head": "own"}}, "own"),
        ({"num_nextn_predict_layers": 2, "mtp": MTP | {"chain": "self"}}, "one module, not 2"),
        ({"num_nextn_predict_layers": 2, "mtp": MTP | {"layer_types": ["full_attention"]}}, "1 entries for 2 layers"),
    ],
)
def test_what_does_not_run_here_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse(**changes)


def test_modules_and_windows_are_read() -> None:
    sliding, full = "sliding_attention", "full_attention"
    architecture = parse(
        sliding_window=7,
        layer_types=[sliding, full, sliding],
        num_nextn_predict_layers=2,
        mtp=MTP | {"layer_types": [full, sliding]},
    )
    assert architecture.windows == {0: 7, 2: 7}
    assert architecture.mtp is not None
    assert (architecture.mtp.num_modules, architecture.mtp.windows) == (2, {1: 7})
    assert architecture.mtp.policy.concat == "hidden_embed"
    assert parse(sliding_window=7).windows == {}
    assert parse(mtp=MTP).mtp is None


@pytest.mark.parametrize(("num_modules", "chain"), [(1, ChainKind.SELF), (3, ChainKind.CHAINED)])
def test_modules_without_a_record_are_wired_as_in_deepseek_v3(num_modules: int, chain: ChainKind) -> None:
    mtp = parse(num_nextn_predict_layers=num_modules).mtp
    assert mtp is not None
    assert mtp.policy == Policy(
        chain=chain,
        concat="embed_hidden",
        target_hidden="post_norm",
        chain_hidden="post_norm",
        out_norm="per_module",
        head="per_module",
    )


@pytest.mark.parametrize("depth", [4, 1])
def test_drafts_of_a_model_without_modules_are_refused(depth: int, tmp_path: Path) -> None:
    save_llama(tmp_path)
    with pytest.raises(ValueError, match="no MTP modules"):
        Engine.load(tmp_path, EngineOptions(depth=depth))
    assert Engine.load(tmp_path, EngineOptions(depth=0, num_blocks=2)).description.max_drafts == 0


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=tmp_path.name):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json"):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (EngineOptions(dtype="float16"), "float16"),
        (EngineOptions(attention="magic"), "magic"),
        (EngineOptions(max_len=100_000), "100000"),
        (EngineOptions(num_blocks=1), "two blocks"),
    ],
)
def test_options_that_do_not_fit_are_named(options: EngineOptions, named: str, tmp_path: Path) -> None:
    save_llama(tmp_path)
    with pytest.raises(ValueError, match=named):
        Engine.load(tmp_path, options)


def test_blocks_follow_from_the_memory_for_them(tmp_path: Path) -> None:
    save_llama(tmp_path)
    architecture = read_architecture(tmp_path)
    size = bytes_per_block(architecture, make_layout(architecture, 0, 4), torch.float32)
    assert size == 2 * 2 * 2 * 8 * 4 * 4  # keys and values, layers, KV heads, head_dim, tokens, bytes of a float32
    engine = Engine.load(tmp_path, EngineOptions(dtype="float32", block_size=4, memory_mb=1))
    assert engine.num_blocks == (1 << 20) // size
    assert engine.description.bytes_per_block == size


def test_the_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    save_llama(tmp_path)
    code = (
        "import sys, pathlib; from worker_svc.model.weights import fingerprint;"
        "print(fingerprint(pathlib.Path(sys.argv[1]), 'float32'))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, env=os.environ, text=True
    )
    assert other.stdout.strip() == fingerprint(tmp_path, "float32")


def test_the_fingerprint_tells_models_and_types_apart(tmp_path: Path) -> None:
    save_llama(tmp_path)
    prints = {fingerprint(tmp_path, "float32"), fingerprint(tmp_path, "bfloat16"), fingerprint(tmp_path, "float32", 1)}
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    prints.add(fingerprint(tmp_path, "float32"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    prints.add(fingerprint(tmp_path, "float32"))
    assert len(prints) == 5
