"""The simulated language model: pure functions of the KV it is given.

A layer stores what comes from below, and puts out a hash of that and of all it sees, as a transformer's layer does: KV
depends on KV of the layers below only.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

VOCAB_SIZE = 12
EOS = 0
_NOT_FINITE_ONE_IN = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Layers by KV group: those of the target and the one layer of each MTP module, each fed by the one before.

    ``windows[group]`` positions are seen, the query's own included; None is all.
    """

    windows: tuple[int | None, ...]
    target: tuple[int, ...]
    modules: tuple[int, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """The group of each layer, modules behind the target."""
        return self.target + self.modules


def embed(token: int) -> int:
    return hash((token,))


def join(hidden: int, token: int) -> int:
    """What an MTP module reads at position q: the hidden state of the one before, and token q + module + 1
    (mtp_semantics §0, "the one fact").
    """
    return hash((hidden, token))


def stored(layer: int, below: int) -> int:
    """The content of a KV slot."""
    return hash((layer, below))


def put_out(below: int, seen: Sequence[int]) -> int:
    """A layer's output at a position, whose own slot is the last it has ``seen``."""
    return hash((below, *seen))


def draw(hidden: int, seed: int, banned: Collection[int]) -> int | None:
    """The token after the position with this ``hidden`` state; None where the logits are not finite.

    Tuples of ints hash alike in every process. ``banned`` leaves at least one token of the vocabulary.
    """
    logits = hash((hidden, seed))
    if logits % _NOT_FINITE_ONE_IN == 0:
        return None
    first = logits // _NOT_FINITE_ONE_IN
    return next(token for i in range(VOCAB_SIZE) if (token := (first + i) % VOCAB_SIZE) not in banned)
