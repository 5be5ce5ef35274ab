"""The right text of a request, from its tokens alone: no blocks, no chunks, no batch mates."""

from dataclasses import dataclass, field

from augury.types import EndReason, Generation
from tests.sim.exact import Exact
from tests.sim.model import Model, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What a request must emit in all, and why it ends there. FAILED: the logits after the tokens are not finite.

    ``exact`` is the KV of prompt and text.
    """

    tokens: tuple[int, ...]
    reason: EndReason
    exact: Exact = field(repr=False)


def right_text(generation: Generation, model: Model) -> Text:
    """The text of ``generation``, which has emitted nothing yet."""
    assert not generation.emitted
    exact, tokens, reason = Exact(model), list(generation.prompt), None
    while reason is None:
        exact.extend_target(tokens)
        reason = _go_on(generation, exact.hidden[-1], tokens)
    exact.extend(tokens)
    return Text(tokens=tuple(tokens[len(generation.prompt) :]), reason=reason, exact=exact)


def _go_on(generation: Generation, hidden: int, tokens: list[int]) -> EndReason | None:
    """Append a token if there is one; why it is the last, if it is."""
    stopping, num_emitted = generation.stopping, len(tokens) - len(generation.prompt)
    drawn = draw(hidden, generation.sampling.seed, stopping.stop_token_ids if num_emitted < stopping.min_tokens else ())
    if drawn is None:
        return EndReason.FAILED
    tokens.append(drawn)
    if drawn in stopping.stop_token_ids:
        return EndReason.STOP
    return EndReason.LENGTH if num_emitted + 1 == stopping.max_tokens else None
