"""The right text of a request, from its tokens alone: no blocks, no chunks, no batch mates."""

from dataclasses import dataclass

from augury.types import EndReason, Generation
from tests.sim.model import draw, key_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What a request must emit in all, and why it ends there. FAILED: the logits after the tokens are not finite."""

    tokens: tuple[int, ...]
    reason: EndReason


def right_text(generation: Generation) -> Text:
    """The text of ``generation``, which has emitted nothing yet."""
    assert not generation.emitted
    stopping, values = generation.stopping, list[int]()
    for token in generation.prompt:
        values.append(key_value(values, token))
    emitted: list[int] = []
    while True:
        banned = stopping.stop_token_ids if len(emitted) < stopping.min_tokens else ()
        drawn = draw(values, generation.sampling.seed, banned)
        if drawn is None:
            return Text(tokens=tuple(emitted), reason=EndReason.FAILED)
        emitted.append(drawn)
        values.append(key_value(values, drawn))
        if drawn in stopping.stop_token_ids:
            return Text(tokens=tuple(emitted), reason=EndReason.STOP)
        if len(emitted) == stopping.max_tokens:
            return Text(tokens=tuple(emitted), reason=EndReason.LENGTH)
