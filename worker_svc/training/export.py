"""The trained modules as files: weights under DeepSeek's names, and what config.json says of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from worker_svc.training.chain import POLICY, Chain
from worker_svc.training.distill import Frozen

WEIGHTS, CONFIG = "mtp.safetensors", "mtp.json"
DRAFT_IDS = "model.mtp.draft_token_ids"


def export(folder: Path, chain: Chain, draft_ids_d: Tensor) -> None:
    """Write ``mtp.safetensors`` (bfloat16, and the draft token ids as int32 [D]) and ``mtp.json`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = chain.named_for_export(chain.architecture.num_layers)
    save_weights(folder / WEIGHTS, tensors | {DRAFT_IDS: draft_ids_d.to("cpu", torch.int32)})
    write_json(folder / CONFIG, {**mtp_config(chain), "draft_token_ids": DRAFT_IDS})


def mtp_config(chain: Chain) -> dict[str, Any]:
    """The entries of config.json that tell an engine of the modules."""
    return {"num_nextn_predict_layers": len(chain), "mtp": POLICY}


def load_exported(folder: Path, chain: Chain, embedding_ve: Tensor) -> Frozen:
    """Give ``chain`` the weights in ``folder``; what it shares with the base."""
    tensors = load_file(folder / WEIGHTS)
    draft_ids = tensors.pop(DRAFT_IDS).long().to(embedding_ve.device)
    chain.load_exported(tensors, chain.architecture.num_layers)
    return Frozen.of(embedding_ve, draft_ids)


def save_weights(file: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file(dict(tensors), file, metadata={"format": "pt"})
    # safetensors makes it readable by its owner alone.
    file.chmod(0o644)


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
