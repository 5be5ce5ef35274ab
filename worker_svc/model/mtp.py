"""The MTP modules of a checkpoint: one decoder layer each over KV of its own, in the wiring that the policy tells.

Module m at position q reads the token at q + m + 1 and the hidden state g of q, and predicts the token at q + m + 2:

    x = W [norm(E[t]); norm(g)]    y = layer(x)    logits = head(norm(y))

in the notation of DeepSeek-V3's report, whose tensor names these are too. Rotation is by q, in every module.
Legend of shapes: T rows, of which Q are queried, E hidden size, D draft vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from worker_svc.attention.port import Attend
from worker_svc.kv import Kv
from worker_svc.model.description import Architecture
from worker_svc.model.llama import Layer, Llama, Rotation
from worker_svc.model.weights import Checkpoint, Linear

DRAFT_IDS = "model.mtp.draft_token_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that write KV: where it goes in each group of modules, as Kv.rows gives it, and their rotation."""

    slots: Mapping[int, Tensor]
    rotation: Rotation

    def front(self, num_rows: int) -> "Rows":
        """The first of them."""
        cos, sin = self.rotation
        slots = {group: slots[: len(slots) // len(cos) * num_rows] for group, slots in self.slots.items()}
        return Rows(slots=slots, rotation=(cos[:num_rows], sin[:num_rows]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Which rows a module's output is wanted of: [Q] indices, None for all of them, and their attention."""

    index: Tensor | None
    attend: Attend


class Modules:
    """The first ``num_modules`` modules. Their KV lies behind that of the model's layers."""

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint, target: Llama, num_modules: int) -> None:
        """Raises ValueError where the checkpoint does not fit the architecture."""
        assert architecture.mtp is not None and 0 < num_modules <= architecture.mtp.num_modules
        self.policy = architecture.mtp.policy
        self._target = target
        subset = checkpoint.take_ids(DRAFT_IDS) if checkpoint.holds(DRAFT_IDS) else None
        everything = torch.arange(architecture.vocab_size, device=target.embedding_ve.device)
        self.draft_ids = everything if subset is None else subset
        """[D] the token ids that the heads' outputs stand for."""
        self._modules = [_Module(architecture, checkpoint, index) for index in range(num_modules)]
        if self.policy.head == "shared":
            self._heads = [_restricted(target.head, subset)] * num_modules
        else:
            own = [_own_head(architecture, checkpoint, index) for index in range(num_modules)]
            self._heads = [_restricted(head, subset) for head in own]

    def __len__(self) -> int:
        return len(self._modules)

    def run(self, m: int, token_ids: Tensor, g_te: Tensor, rows: Rows, queries: Queries, kv: Kv) -> Tensor:
        """Write module ``m``'s KV of the rows [T]; its output [Q, E] at the ``queries``, before any norm."""
        module = self._modules[m]
        return module.run(F.embedding(token_ids, self._target.embedding_ve), g_te, rows, queries, kv)

    def normed(self, m: int, y_te: Tensor) -> Tensor:
        """Module ``m``'s output behind the norm that stands before its head."""
        if self.policy.out_norm == "none":
            return y_te
        return self._target.norm(y_te) if self.policy.out_norm == "shared" else self._modules[m].norm(y_te)

    def logits(self, m: int, normed_te: Tensor) -> Tensor:
        """The float32 logits [T, D] over the draft vocabulary."""
        return self._heads[m](normed_te).float()


class _Module:
    def __init__(self, a: Architecture, checkpoint: Checkpoint, index: int) -> None:
        assert a.mtp is not None
        policy, name = a.mtp.policy, f"model.layers.{a.num_layers + index}"
        self._eps = a.norm_eps
        self._hidden_first = policy.concat == "hidden_embed"
        self._kv_layer = a.num_layers + index
        self._enorm_e = checkpoint.take(f"{name}.enorm.weight", a.hidden_size)
        self._hnorm_e = checkpoint.take(f"{name}.hnorm.weight", a.hidden_size)
        self._in = checkpoint.linear([f"{name}.eh_proj"], 2 * a.hidden_size, [a.hidden_size])
        self._layer = Layer(a, checkpoint, name)
        if policy.out_norm == "per_module":
            self._norm_e = checkpoint.take(f"{name}.shared_head.norm.weight", a.hidden_size)

    def run(self, e_te: Tensor, g_te: Tensor, rows: Rows, queries: Queries, kv: Kv) -> Tensor:
        pair = [self._rms(e_te, self._enorm_e), self._rms(g_te, self._hnorm_e)]
        x_te = self._in(torch.cat(pair[::-1] if self._hidden_first else pair, -1))
        q_thd, k_tkd, v_tkd = self._layer.project(x_te, rows.rotation)
        view = kv.layout.views[self._kv_layer]
        kv.write(self._kv_layer, rows.slots[view.group], k_tkd, v_tkd)
        if queries.index is not None:
            if len(queries.index) == 0:
                return x_te[:0]
            q_thd, x_te = q_thd.index_select(0, queries.index), x_te.index_select(0, queries.index)
        attended = queries.attend(q_thd, *kv.layers[self._kv_layer], view)
        return self._layer.combine(x_te, attended)

    def norm(self, y_te: Tensor) -> Tensor:
        return self._rms(y_te, self._norm_e)

    def _rms(self, x_te: Tensor, weight_e: Tensor) -> Tensor:
        return F.rms_norm(x_te, x_te.shape[1:], weight_e, self._eps)


def drop_modules(a: Architecture, checkpoint: Checkpoint, num_kept: int) -> None:
    """Do without the modules past the first ``num_kept``, and without the kept ones' copies of the embedding."""
    num_modules = a.mtp.num_modules if a.mtp else 0
    for index in range(num_modules):
        checkpoint.drop(f"model.layers.{a.num_layers + index}." + ("embed_tokens." if index < num_kept else ""))
    if num_modules > num_kept:
        checkpoint.drop(DRAFT_IDS)


def _own_head(a: Architecture, checkpoint: Checkpoint, index: int) -> Linear:
    name = f"model.layers.{a.num_layers + index}.shared_head.head"
    return checkpoint.linear([name], a.hidden_size, [a.vocab_size])


def _restricted(head: Linear, outputs: Tensor | None) -> Linear:
    return head if outputs is None else head.restricted(outputs)
