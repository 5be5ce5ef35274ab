"""The Llama layer for whole sequences, whose parameters are named as in Hugging Face checkpoints.

Legend of shapes: B sequences, T positions, E hidden size, H query heads, K KV heads, D head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker_svc.model.description import Architecture
from worker_svc.model.llama import rotary_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all layers of one pass share: rotation [T, D] by cosine and signed sine, and who sees whom [T, T]."""

    cos_td: Tensor
    sin_td: Tensor
    visible_tt: Tensor


def layer_contexts(
    architecture: Architecture, windows: Sequence[int | None], length: int, device: torch.device
) -> list[Context]:
    """One for each of ``windows``, for positions 0 to ``length`` - 1.

    A position sees itself and what is before it: everything where the window is None, else that many tokens in all.
    """
    cos, sin = (table.to(device) for table in rotary_tables(architecture.rope, architecture.head_dim, length))
    position = torch.arange(length, device=device)
    distance = position[:, None] - position
    visible = {window: (distance >= 0) & (distance < (window or length)) for window in set(windows)}
    return [Context(cos_td=cos, sin_td=sin, visible_tt=visible[window]) for window in windows]


class Attention(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self._head_dim = a.head_dim
        self._num_shared = a.num_heads // a.num_kv_heads
        self.q_proj = nn.Linear(a.hidden_size, a.num_heads * a.head_dim, bias=False)
        self.k_proj = nn.Linear(a.hidden_size, a.num_kv_heads * a.head_dim, bias=False)
        self.v_proj = nn.Linear(a.hidden_size, a.num_kv_heads * a.head_dim, bias=False)
        self.o_proj = nn.Linear(a.num_heads * a.head_dim, a.hidden_size, bias=False)

    def forward(self, x_bte: Tensor, context: Context) -> Tensor:
        q_bhtd, k_bktd, v_bktd = (
            projection(x_bte).unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q_bhtd, k_bktd = _rotate(q_bhtd, context), _rotate(k_bktd, context)
        k_bhtd, v_bhtd = (part.repeat_interleave(self._num_shared, 1) for part in (k_bktd, v_bktd))
        y_bhtd = functional.scaled_dot_product_attention(q_bhtd, k_bhtd, v_bhtd, attn_mask=context.visible_tt)
        y_bte: Tensor = self.o_proj(y_bhtd.transpose(1, 2).flatten(2))
        return y_bte


class Mlp(nn.Module):
    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(a.hidden_size, a.intermediate_size, bias=False)
        self.up_proj = nn.Linear(a.hidden_size, a.intermediate_size, bias=False)
        self.down_proj = nn.Linear(a.intermediate_size, a.hidden_size, bias=False)

    def forward(self, x_bte: Tensor) -> Tensor:
        y_bte: Tensor = self.down_proj(functional.silu(self.gate_proj(x_bte)) * self.up_proj(x_bte))
        return y_bte


class Layer(nn.Module):
    """x [B, T, E] to x + attention + MLP, both behind an RMS norm."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(a.hidden_size, a.norm_eps)
        self.self_attn = Attention(a)
        self.post_attention_layernorm = nn.RMSNorm(a.hidden_size, a.norm_eps)
        self.mlp = Mlp(a)

    def layer(self, x_bte: Tensor, context: Context) -> Tensor:
        x_bte = x_bte + self.self_attn(self.input_layernorm(x_bte), context)
        y_bte: Tensor = x_bte + self.mlp(self.post_attention_layernorm(x_bte))
        return y_bte

    def forward(self, x_bte: Tensor, context: Context) -> Tensor:
        return self.layer(x_bte, context)


def _rotate(x_bhtd: Tensor, context: Context) -> Tensor:
    half = x_bhtd.shape[-1] // 2
    return (x_bhtd * context.cos_td + x_bhtd.roll(half, -1) * context.sin_td).to(x_bhtd.dtype)
