"""What a checkpoint's MTP modules are: their number and the policy that tells one family from another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import msgspec

_NormPlace = Literal["pre_norm", "post_norm"]


class ChainKind(Enum):
    """What module m reads beside a token: module m - 1's output, the target's hidden state, or (one module, used again
    and again) its own last output."""

    CHAINED = "chained"
    PARALLEL = "parallel"
    SELF = "self"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How modules are wired (mtp_models §1.4).

    ``concat`` is the order of the projection's columns. ``target_hidden`` and ``chain_hidden`` are handed over before
    or after a final norm: the target's own, and the module's ``out_norm``, which also stands before the ``head``.
    """

    chain: ChainKind
    concat: Literal["embed_hidden", "hidden_embed"]
    target_hidden: _NormPlace
    chain_hidden: _NormPlace
    out_norm: Literal["shared", "per_module", "none"]
    head: Literal["shared", "per_module"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtp:
    """``windows`` names the modules that see only so many tokens, themselves included; ``tagged``: the checkpoint tells
    of each module whether it does."""

    num_modules: int
    policy: Policy
    windows: Mapping[int, int] = field(default_factory=dict)
    tagged: bool = False

    def num_drafts(self, depth: int | None) -> int:
        """Drafts of a step where ``depth`` is asked for; None: one by each module.

        Raises ValueError for more than there are modules, unless the one there is feeds itself.
        """
        if depth is None:
            return self.num_modules
        if depth > self.num_modules and self.policy.chain is not ChainKind.SELF:
            raise ValueError(f"{depth} drafts are asked for, but the model has {self.num_modules} MTP modules")
        return depth

    def num_used(self, num_drafts: int) -> int:
        """Modules that ``num_drafts`` drafts take. Also the tokens after a position that its draft KV depends on, which
        is the lookahead of mtp_semantics rule A.
        """
        return min(num_drafts, self.num_modules)


def parse_mtp(num_modules: int, record: Mapping[str, Any] | None, sliding_window: int | None) -> Mtp | None:
    """The modules that config.json's ``num_nextn_predict_layers`` and ``mtp`` mean; None without any.

    A checkpoint without the record is wired as DeepSeek-V3 is. Raises ValueError naming what is unsupported.
    """
    if num_modules == 0:
        return None
    if record is None:
        return Mtp(num_modules=num_modules, policy=_deepseek(num_modules))
    policy = msgspec.convert(record, Policy)
    if policy.chain is ChainKind.SELF and num_modules != 1:
        raise ValueError(f"mtp.chain is 'self', which means one module, not {num_modules}")
    layer_types = record.get("layer_types")
    windows = layer_windows("mtp.layer_types", layer_types, num_modules, sliding_window)
    return Mtp(num_modules=num_modules, policy=policy, windows=windows, tagged=layer_types is not None)


def layer_windows(
    name: str, layer_types: Sequence[str] | None, num_layers: int, sliding_window: int | None
) -> dict[int, int]:
    """The window of each layer that has one. ``name`` is the config key; None: every layer sees everything."""
    if layer_types is None:
        return {}
    if len(layer_types) != num_layers:
        raise ValueError(f"{name} has {len(layer_types)} entries for {num_layers} layers")
    if unknown := set(layer_types) - {"full_attention", "sliding_attention"}:
        raise ValueError(f"{name} {sorted(map(str, unknown))} is not supported")
    sliding = [index for index, kind in enumerate(layer_types) if kind == "sliding_attention"]
    if sliding and sliding_window is None:
        raise ValueError(f"{name} names a sliding layer, but there is no sliding_window")
    return dict.fromkeys(sliding, sliding_window) if sliding_window is not None else {}


def _deepseek(num_modules: int) -> Policy:
    return Policy(
        chain=ChainKind.CHAINED if num_modules > 1 else ChainKind.SELF,
        concat="embed_hidden",
        target_hidden="post_norm",
        chain_hidden="post_norm",
        out_norm="per_module",
        head="per_module",
    )
