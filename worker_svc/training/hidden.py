"""The base's hidden states of whole texts, worked out once and kept in a folder."""

from collections.abc import Mapping, Sequence
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


class Kept:
    """A folder of files, each with the hidden states of some texts under the texts' indices."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, tensors: Mapping[int, Tensor]) -> None:
        """Write another file; it appears whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{sum(1 for _ in self._folder.glob('*.safetensors')):05}"
        partial = self._folder / f"{name}.partial"
        save_file({str(index): tensor for index, tensor in tensors.items()}, partial)
        partial.replace(self._folder / f"{name}.safetensors")

    def load(self) -> dict[int, Tensor]:
        """All of them; none where there is no folder."""
        files = sorted(self._folder.glob("*.safetensors"))
        return {int(index): tensor for file in files for index, tensor in load_file(file).items()}


@torch.inference_mode()
def hidden_states(base: Base, texts: Sequence[Text], kept: Kept | None = None) -> list[Tensor]:
    """For each text the hidden states behind the final norm of all tokens but the last, bfloat16 [T - 1, E].

    What ``kept`` holds of them is read, what it lacks is added to it. Draws a progress bar.
    """
    known = kept.load() if kept is not None else {}
    missing = sorted((text for text in texts if text.index not in known), key=lambda text: len(text.tokens))
    fresh: dict[int, Tensor] = {}
    starts = range(0, len(missing), _BATCH)
    for start in tqdm(starts, unit="batch", desc="hidden states", disable=kept is None or not missing):
        fresh |= _compute(base, missing[start : start + _BATCH])
        if kept is not None and (len(fresh) >= _SAVE_EVERY or start == starts[-1]):
            kept.add(fresh)
            known, fresh = known | fresh, {}
    known |= fresh
    return [known[text.index] for text in texts]


def _compute(base: Base, texts: Sequence[Text]) -> dict[int, Tensor]:
    device = base.embed_tokens.weight.device
    tokens = pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True)
    h_bte = base(tokens.to(device)).to("cpu", torch.bfloat16)
    return {t.index: h_te[: len(t.tokens) - 1].clone() for t, h_te in zip(texts, h_bte, strict=True)}
