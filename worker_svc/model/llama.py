"""The Llama-family decoder over paged KV.

Legend of shapes: T tokens of the batch, N rows that get logits, E hidden size, H query heads, K KV heads, D head_dim,
I intermediate size, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from worker_svc.attention.port import Attend
from worker_svc.batch import Batch
from worker_svc.kv import Kv
from worker_svc.model.description import Architecture, Rope
from worker_svc.model.weights import Checkpoint, Linear

Rotation = tuple[Tensor, Tensor]
"""Cosine and signed sine, [T, 1, D] each."""


class Llama:
    """The decoder; its weights are taken from a checkpoint at birth."""

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint, max_len: int) -> None:
        """For positions below ``max_len``. Raises ValueError where the checkpoint does not fit the architecture."""
        a = architecture
        self._eps = a.norm_eps
        self.embedding_ve = checkpoint.take("model.embed_tokens.weight", a.vocab_size, a.hidden_size)
        self._layers = [Layer(a, checkpoint, f"model.layers.{index}") for index in range(a.num_layers)]
        self._norm_e = checkpoint.take("model.norm.weight", a.hidden_size)
        if a.tied_embeddings:
            self.head = Linear(self.embedding_ve)
            checkpoint.drop("lm_head.weight")
        else:
            self.head = checkpoint.linear(["lm_head"], a.hidden_size, [a.vocab_size])
        cos, sin = rotary_tables(a.rope, a.head_dim, max_len)
        self._cos_pd, self._sin_pd = cos.to(self._norm_e), sin.to(self._norm_e)

    def forward(self, batch: Batch, kv: Kv, attend: Attend) -> Tensor:
        """Write the batch's KV and return its hidden states [T, E], before the final norm."""
        h_te = F.embedding(batch.token_ids, self.embedding_ve)
        rotation, rows = self.rotation(batch.positions), [kv.rows(slots) for slots in batch.slots]
        for index, (layer, view) in enumerate(zip(self._layers, kv.layout.views, strict=False)):
            q_thd, k_tkd, v_tkd = layer.project(h_te, rotation)
            kv.write(index, rows[view.group], k_tkd, v_tkd)
            h_te = layer.combine(h_te, attend(q_thd, *kv.layers[index], view))
        return h_te

    def norm(self, h_te: Tensor) -> Tensor:
        """The final norm."""
        return F.rms_norm(h_te, h_te.shape[1:], self._norm_e, self._eps)

    def logits(self, normed_ne: Tensor) -> Tensor:
        """The float32 logits [N, V] that follow hidden states [N, E] after the final norm."""
        return self.head(normed_ne).float()

    def rotation(self, positions: Tensor) -> Rotation:
        """For tokens at ``positions`` [T]."""
        return self._cos_pd[positions].unsqueeze(1), self._sin_pd[positions].unsqueeze(1)


class Layer:
    """One layer of the decoder, under the tensors called ``name``."""

    def __init__(self, a: Architecture, checkpoint: Checkpoint, name: str) -> None:
        self._eps = a.norm_eps
        self._sizes = a.num_heads, a.num_kv_heads, a.num_kv_heads
        self._head_dim = a.head_dim
        num_q, num_kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        self._norm_in_e = checkpoint.take(f"{name}.input_layernorm.weight", a.hidden_size)
        self._norm_mlp_e = checkpoint.take(f"{name}.post_attention_layernorm.weight", a.hidden_size)
        qkv = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        self._qkv = checkpoint.linear(qkv, a.hidden_size, [num_q, num_kv, num_kv], a.attention_bias)
        self._out = checkpoint.linear([f"{name}.self_attn.o_proj"], num_q, [a.hidden_size], a.attention_bias)
        gate_up = [f"{name}.mlp.{part}_proj" for part in ("gate", "up")]
        self._gate_up = checkpoint.linear(gate_up, a.hidden_size, [a.intermediate_size] * 2, a.mlp_bias)
        self._down = checkpoint.linear([f"{name}.mlp.down_proj"], a.intermediate_size, [a.hidden_size], a.mlp_bias)

    def project(self, h_te: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both rotated) and values."""
        x_te = F.rms_norm(h_te, h_te.shape[1:], self._norm_in_e, self._eps)
        num_q, num_k, num_v = self._sizes
        qkv = self._qkv(x_te).view(-1, num_q + num_k + num_v, self._head_dim)
        qk = _rotate(qkv[:, : num_q + num_k], rotation)
        return qk[:, :num_q], qk[:, num_q:], qkv[:, num_q + num_k :]

    def combine(self, h_te: Tensor, attended_thd: Tensor) -> Tensor:
        """The layer's output, from its input and what its queries attended to."""
        h_te = h_te + self._out(attended_thd.flatten(1))
        x_te = F.rms_norm(h_te, h_te.shape[1:], self._norm_mlp_e, self._eps)
        gate_ti, up_ti = self._gate_up(x_te).chunk(2, -1)
        return h_te + self._down(F.silu(gate_ti) * up_ti)


def rotary_tables(rope: Rope, head_dim: int, max_len: int) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine [max_len, head_dim], float32: x cos + (x rolled by half) sin rotates x.

    The Hugging Face layout: element i turns with element i + head_dim / 2, whose sine is negative in the first half.
    """
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), _scaled(frequencies, rope))
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _scaled(frequencies: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1: long waves are stretched by ``factor``, short ones kept, those between interpolated."""
    scaling = rope.scaling
    if scaling is None:
        return frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_length * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)
