"""What lane drivers ask and what they are answered; an answer belongs to the question with the same stamp."""

from dataclasses import dataclass

from augury.types import Grant, Outcome, PoolSpec, Proposal, Step

Stamp = tuple[str, int, int | None]
"""(kind, epoch, seq)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The pool is open under ``epoch``."""

    epoch: int
    num_available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The question with this stamp is refused: the lane must fence."""

    stamp: Stamp
    error: str


Question = PoolSpec | Proposal | Step
Answer = Opened | Grant | Outcome | Refusal


def stamp(message: Question | Answer) -> Stamp:
    match message:
        case Refusal():
            return message.stamp
        case PoolSpec() | Opened():
            return "open", message.epoch, None
        case Proposal() | Grant():
            return "propose", message.epoch, message.seq
        case Step() | Outcome():
            return "step", message.epoch, message.seq
