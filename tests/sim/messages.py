"""What lane drivers ask and what they are answered; an answer belongs to the question with the same stamp."""

from dataclasses import dataclass

from augury.types import Grant, Holding, Outcome, PoolSpec, Proposal, Step

Stamp = tuple[str, int, int]
"""(kind, epoch, number)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Open the pool, or, where it is not known, take over what is held and what the worker vouches for.

    ``whole``: the worker did tell.
    """

    spec: PoolSpec
    number: int
    holdings: tuple[Holding, ...] = ()
    content: tuple[tuple[int, bytes], ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The worker has ended, and its blocks with it. Nobody waits for an answer."""

    spec: PoolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The pool is open under ``epoch``."""

    epoch: int
    number: int
    num_available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTags:
    """What does every sealed block hold?"""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Blocks and the keys they carry."""

    epoch: int
    number: int
    content: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The question with this stamp is refused; ``unknown``: because the pool is."""

    stamp: Stamp
    unknown: bool
    error: str


Question = Open | Proposal | Step | AskTags
Answer = Opened | Grant | Outcome | Tags | Refusal


def stamp(message: Question | Answer) -> Stamp:
    match message:
        case Refusal():
            return message.stamp
        case Open():
            return "open", message.spec.epoch, message.number
        case Opened():
            return "open", message.epoch, message.number
        case AskTags() | Tags():
            return "tags", message.epoch, message.number
        case Proposal() | Grant():
            return "propose", message.epoch, message.seq
        case Step() | Outcome():
            return "step", message.epoch, message.seq
