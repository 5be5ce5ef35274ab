"""Chained MTP modules in DeepSeek's form, for whole sequences.

Module m at row p eats the token at p + m + 1 and module m - 1's output (the base's hidden state for m = 0), and
predicts the token at p + m + 2:

    x = W [N_e(E[t]); N_h(g)]    y = Layer(x)    g' = N_out(y)    logits = head(g')
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from worker_svc.model.description import Architecture
from worker_svc.training.layers import Context, Layer, layer_contexts

POLICY: dict[str, Any] = {
    "chain": "chained",
    "concat": "embed_hidden",
    "target_hidden": "post_norm",
    "chain_hidden": "post_norm",
    "out_norm": "per_module",
    "head": "shared",
}
"""The value of ``mtp`` in config.json that tells an engine what is written above."""


class Module(Layer):
    """One MTP module. Parameters are named as in DeepSeek-V3's checkpoints."""

    def __init__(self, a: Architecture) -> None:
        super().__init__(a)
        self.enorm = nn.RMSNorm(a.hidden_size, a.norm_eps)
        self.hnorm = nn.RMSNorm(a.hidden_size, a.norm_eps)
        self.eh_proj = nn.Linear(2 * a.hidden_size, a.hidden_size, bias=False)
        self.shared_head = nn.ModuleDict({"norm": nn.RMSNorm(a.hidden_size, a.norm_eps)})
        self.dropout = nn.Dropout(0.0)

    @property
    def out_norm(self) -> nn.RMSNorm:
        norm = self.shared_head["norm"]
        assert isinstance(norm, nn.RMSNorm)
        return norm

    def step(self, embedding_bte: Tensor, hidden_bte: Tensor, context: Context) -> Tensor:
        """g' for the embeddings of the rows' tokens and the hidden states g, all [B, T, E]."""
        pair = torch.cat([self.enorm(embedding_bte), self.hnorm(hidden_bte)], -1)
        normed: Tensor = self.out_norm(self.layer(self.eh_proj(self.dropout(pair)), context))
        return normed


class Chain(nn.Module):
    """``windows`` has one entry for each module: how many rows its attention sees, None for all."""

    def __init__(self, architecture: Architecture, windows: Sequence[int | None]) -> None:
        super().__init__()
        self.architecture = architecture
        self.windows = tuple(windows)
        self.modules_ = nn.ModuleList(Module(architecture) for _ in windows)

    def each(self) -> list[Module]:
        return [module for module in self.modules_ if isinstance(module, Module)]

    def __len__(self) -> int:
        return len(self.windows)

    def forward(self, hidden_bte: Tensor, embedding_bte: Tensor, depth: int) -> list[Tensor]:
        """The first ``depth`` modules' outputs [B, R, E] at rows 0 to R - 1, where R = T - len(self).

        ``hidden_bte`` and ``embedding_bte`` belong to the tokens 0 to T - 1. Module m's row p predicts token p + m + 2,
        as the base does at row p + m + 1.
        """
        num_rows = hidden_bte.shape[1] - len(self)
        contexts = layer_contexts(self.architecture, self.windows[:depth], num_rows, hidden_bte.device)
        g_bre = hidden_bte[:, :num_rows]
        outputs = []
        for m, (module, context) in enumerate(zip(self.each()[:depth], contexts, strict=True)):
            g_bre = module.step(embedding_bte[:, m + 1 : m + 1 + num_rows], g_bre, context)
            outputs.append(g_bre)
        return outputs

    @torch.no_grad()
    def spread(self) -> None:
        """Make every module equal to the first."""
        first, *others = self.each()
        for module in others:
            module.load_state_dict(first.state_dict())

    def named_for_export(self, num_layers: int) -> dict[str, Tensor]:
        """Every parameter in bfloat16 under its checkpoint name, behind a base of ``num_layers`` layers."""
        return {
            f"model.layers.{num_layers + m}.{name}": parameter.detach().to("cpu", torch.bfloat16).contiguous()
            for m, module in enumerate(self.each())
            for name, parameter in module.named_parameters()
        }

    def load_exported(self, tensors: dict[str, Tensor], num_layers: int) -> None:
        """Take the parameters that ``named_for_export`` wrote."""
        for m, module in enumerate(self.each()):
            prefix = f"model.layers.{num_layers + m}."
            module.load_state_dict(
                {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            )
