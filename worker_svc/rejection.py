"""Verification: a draft is accepted iff it equals what the target itself draws there (mtp_semantics rule H)."""

from collections.abc import Sequence

from torch import Tensor

from worker_svc.requests import Held
from worker_svc.sampling import Draw, Reading, sample, takes_highest


def verify(request: Held, drafts: Sequence[int], logits: Tensor, readings: Sequence[Reading]) -> list[int]:
    """Append to the request's tokens, and return, the accepted drafts and the bonus token.

    ``logits`` [1 + len(drafts), V], changed in place, follow the last known token and each draft; ``readings`` are
    theirs. Each position is drawn with all tokens accepted before it as its history. A stop token is the last one, and
    so is the one before a position whose logits are not finite: empty where that is the first.
    """
    known = len(request.tokens)
    for index, row in enumerate(logits):
        if not readings[index].finite:
            break
        draw = _draw(request)
        token = readings[index].highest if takes_highest(draw) else sample(row.unsqueeze(0), [draw])[0]
        request.tokens.append(token)
        if token in request.stopping.stop_token_ids or token not in drafts[index : index + 1]:
            break
    return request.tokens[known:]


def _draw(request: Held) -> Draw:
    return Draw(
        position=len(request.tokens),
        tokens=request.tokens,
        num_prompt=request.num_prompt,
        sampling=request.sampling,
        stopping=request.stopping,
    )
