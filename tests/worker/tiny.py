"""Tiny random Llama checkpoints, made and saved by transformers, and MTP modules for them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MinistralConfig, MinistralForCausalLM

VOCAB_SIZE = 97
BLOCK_SIZE = 4


def save_llama(path: Path, *, max_shard_size: str = "1GB", **changes: Any) -> Any:
    """A model of two layers saved in ``path``; weights are large enough that its texts vary. Returns it.

    With a ``sliding_window``, transformers calls it a Ministral, which is a Llama some of whose layers have one.
    """
    torch.manual_seed(7)
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    model: Any
    if "sliding_window" in changes:
        model = MinistralForCausalLM(MinistralConfig(**values | {"head_dim": 8} | changes))
    else:
        model = LlamaForCausalLM(LlamaConfig(**values | changes))
    model.eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    change_config(path, architectures=["LlamaForCausalLM"])
    return model


def change_config(path: Path, **changes: Any) -> None:
    """Of the config.json in ``path``."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


POLICY = {
    "chain": "chained",
    "concat": "embed_hidden",
    "target_hidden": "post_norm",
    "chain_hidden": "post_norm",
    "out_norm": "per_module",
    "head": "shared",
}


def save_mtp(path: Path, num_modules: int, policy: Mapping[str, Any] | None = None, **config: Any) -> dict[str, Tensor]:
    """A model as ``save_llama`` makes it and random modules, which it returns; ``config`` is for config.json."""
    model = save_llama(path)
    policy = POLICY | dict(policy or {})
    rng = torch.Generator().manual_seed(11)
    tensors = {}
    for index in range(num_modules):
        prefix = f"model.layers.{model.config.num_hidden_layers + index}."
        for name, tensor in _module_tensors(model, policy).items():
            noise = torch.randn(tensor.shape, generator=rng)
            tensors[prefix + name] = 1 + 0.2 * noise if "norm" in name else 0.3 * noise
    write_mtp(path, tensors, {"num_nextn_predict_layers": num_modules, "mtp": policy} | config)
    return tensors


def save_predictable(
    path: Path, num_modules: int, policy: Mapping[str, Any] | None = None, memory: float = 0.0
) -> None:
    """A model whose next token follows from the last one, as far as ``memory``, what its layers add, is small; and
    modules that know how.
    """
    model = save_llama(path)
    policy = POLICY | dict(policy or {})
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= memory
            layer.mlp.down_proj.weight *= memory
    model.save_pretrained(path)
    hidden, last = model.config.hidden_size, model.model.layers[-1].state_dict()
    passes_on = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], 1)
    own = {"enorm": torch.ones(hidden), "hnorm": torch.ones(hidden), "shared_head.norm": torch.ones(hidden)}
    tensors: dict[str, Tensor] = {}
    for index in range(num_modules):
        prefix = f"model.layers.{model.config.num_hidden_layers + index}."
        module = last | {f"{name}.weight": tensor for name, tensor in own.items()} | {"eh_proj.weight": passes_on}
        tensors |= {prefix + name: tensor.clone() for name, tensor in module.items()}
    write_mtp(path, tensors, {"num_nextn_predict_layers": num_modules, "mtp": policy})


def write_mtp(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Modules beside the model in ``path``."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "mtp.safetensors")
    change_config(path, **config)


def limit_drafts(path: Path, token_ids: list[int]) -> None:
    """The modules' head reads these tokens only."""
    tensors = load_file(path / "mtp.safetensors")
    ids = torch.tensor(token_ids, dtype=torch.int32)
    save_file(tensors | {"model.mtp.draft_token_ids": ids}, path / "mtp.safetensors")


def _module_tensors(model: Any, policy: Mapping[str, Any]) -> dict[str, Tensor]:
    """Names and shapes of one module."""
    hidden = model.config.hidden_size
    norms = ["enorm", "hnorm"] + ["shared_head.norm"] * (policy["out_norm"] == "per_module")
    tensors = {f"{name}.weight": torch.empty(hidden) for name in norms}
    tensors["eh_proj.weight"] = torch.empty(hidden, 2 * hidden)
    if policy["head"] == "per_module":
        tensors["shared_head.head.weight"] = torch.empty(model.config.vocab_size, hidden)
    layer: dict[str, Tensor] = model.model.layers[-1].state_dict()
    return tensors | layer
