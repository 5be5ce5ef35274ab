"""The base's hidden states of whole texts, worked out once and kept in a file."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from worker_svc.training.base import Base
from worker_svc.training.corpus import Text

_BATCH = 16
_SAVE_EVERY = 64 * _BATCH


@torch.inference_mode()
def hidden_states(base: Base, texts: Sequence[Text], file: Path | None = None) -> list[Tensor]:
    """For each text its hidden states behind the final norm, bfloat16 [T, E].

    What ``file`` holds of them under the texts' indices is read, what it lacks is added to it. Draws a progress bar.
    """
    known = load_file(file) if file is not None and file.is_file() else {}
    missing = sorted((text for text in texts if str(text.index) not in known), key=lambda text: len(text.tokens))
    starts = range(0, len(missing), _BATCH)
    for start in tqdm(starts, unit="batch", desc="hidden states", disable=file is None or not missing):
        known |= _compute(base, missing[start : start + _BATCH])
        if file is not None and (start % _SAVE_EVERY == 0 or start == starts[-1]):
            _save(known, file)
    return [known[str(text.index)] for text in texts]


def _compute(base: Base, texts: Sequence[Text]) -> dict[str, Tensor]:
    device = base.embed_tokens.weight.device
    tokens = pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True)
    h_bte = base(tokens.to(device)).to("cpu", torch.bfloat16)
    return {str(t.index): h_te[: len(t.tokens)].clone() for t, h_te in zip(texts, h_bte, strict=True)}


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    partial = file.with_suffix(".partial")
    save_file(tensors, partial)
    os.replace(partial, file)
