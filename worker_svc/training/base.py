"""A Llama model for whole sequences: the frozen base that MTP modules are trained for, or one in training itself."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from worker_svc.model.description import Architecture, read_architecture
from worker_svc.training.layers import Layer, layer_contexts


class Base(nn.Module):
    """Embedding, layers and final norm; the head is the embedding."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        assert architecture.tied_embeddings
        self.architecture = architecture
        self._windows = [architecture.windows.get(index) for index in range(architecture.num_layers)]
        self.embed_tokens = nn.Embedding(architecture.vocab_size, architecture.hidden_size)
        self.layers = nn.ModuleList(Layer(architecture) for _ in self._windows)
        self.norm = nn.RMSNorm(architecture.hidden_size, architecture.norm_eps)

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> "Base":
        """The model in a Hugging Face style folder, frozen. Raises ValueError where it is not one that runs here."""
        architecture = read_architecture(folder)
        if not architecture.tied_embeddings:
            raise ValueError(f"{folder} has a head of its own; modules are trained for tied embeddings only")
        base = cls(architecture)
        tensors = load_file(folder / "model.safetensors")
        names = base.state_dict()
        base.load_state_dict({name: tensors[f"model.{name}"] for name in names})
        return base.to(device, dtype).requires_grad_(False).eval()

    def named_for_export(self) -> dict[str, Tensor]:
        """Every parameter in bfloat16 under its checkpoint name."""
        return {
            f"model.{name}": parameter.detach().to("cpu", torch.bfloat16).contiguous()
            for name, parameter in self.named_parameters()
        }

    @property
    def last_layer(self) -> Layer:
        layer = self.layers[-1]
        assert isinstance(layer, Layer)
        return layer

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """The hidden states [B, T, E] behind the final norm."""
        h_bte = self.embed_tokens(tokens_bt)
        contexts = layer_contexts(self.architecture, self._windows, tokens_bt.shape[1], tokens_bt.device)
        for layer, context in zip(self.layers, contexts, strict=True):
            h_bte = layer(h_bte, context)
        normed_bte: Tensor = self.norm(h_bte)
        return normed_bte
