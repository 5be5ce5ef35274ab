"""A Llama model for whole sequences: the frozen base that MTP modules are trained for, or one in training itself."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from worker_svc.model.description import Architecture, read_architecture
from worker_svc.training.layers import Layer, context


class Base(nn.Module):
    """Embedding, layers and final norm; the head is the embedding. ``windows`` holds None where a layer sees all."""

    def __init__(self, architecture: Architecture, windows: tuple[int | None, ...]) -> None:
        super().__init__()
        assert len(windows) == architecture.num_layers and architecture.tied_embeddings
        self.architecture = architecture
        self.windows = windows
        self.embed_tokens = nn.Embedding(architecture.vocab_size, architecture.hidden_size)
        self.layers = nn.ModuleList(Layer(architecture) for _ in windows)
        self.norm = nn.RMSNorm(architecture.hidden_size, architecture.norm_eps)

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> "Base":
        """The model in a Hugging Face style folder, frozen. Raises ValueError where it is not one that runs here."""
        architecture = read_architecture(folder)
        if not architecture.tied_embeddings:
            raise ValueError(f"{folder} has a head of its own; modules are trained for tied embeddings only")
        base = cls(architecture, (None,) * architecture.num_layers)
        tensors = load_file(folder / "model.safetensors")
        base.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
        return base.to(device, dtype).requires_grad_(False).eval()

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """The hidden states [B, T, E] behind the final norm."""
        h_bte = self.embed_tokens(tokens_bt)
        length = tokens_bt.shape[1]
        contexts = {w: context(self.architecture, length, w, tokens_bt.device) for w in set(self.windows)}
        for layer, window in zip(self.layers, self.windows, strict=True):
            h_bte = layer(h_bte, contexts[window])
        normed_bte: Tensor = self.norm(h_bte)
        return normed_bte
