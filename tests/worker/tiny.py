"""Tiny random Llama checkpoints, made and saved by transformers."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 97
BLOCK_SIZE = 4


def save_llama(path: Path, *, max_shard_size: str = "1GB", **changes: Any) -> Any:
    """A model of two layers saved in ``path``; weights are large enough that its texts vary. Returns it."""
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
    model: Any = LlamaForCausalLM(LlamaConfig(**values | changes))
    model.eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    return model
