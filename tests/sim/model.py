"""The simulated language model: pure functions of the KV it is given."""

from collections.abc import Collection, Sequence

VOCAB_SIZE = 12
EOS = 0
_NOT_FINITE_ONE_IN = 400


def key_value(before: Sequence[int], token: int) -> int:
    """The content of a KV slot: a function of every slot before it and of the slot's own token."""
    return hash((*before, token))


def module_value(module: int, hidden: int, token: int, before: Sequence[int]) -> int:
    """What an MTP module writes at position q: a function of the hidden state below it at q, of its own slots before q,
    and of token q + module + 1 (mtp_semantics §0, "the one fact").
    """
    return hash((module, hidden, token, *before))


def draw(values: Sequence[int], seed: int, banned: Collection[int]) -> int | None:
    """The token after the positions with these KV ``values``; None where the logits are not finite.

    Tuples of ints hash alike in every process. ``banned`` leaves at least one token of the vocabulary.
    """
    logits = hash((*values, seed))
    if logits % _NOT_FINITE_ONE_IN == 0:
        return None
    first = logits // _NOT_FINITE_ONE_IN
    return next(token for i in range(VOCAB_SIZE) if (token := (first + i) % VOCAB_SIZE) not in banned)
