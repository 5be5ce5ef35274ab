"""The requests a worker holds, and the check of a step against them before anything is changed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from augury.errors import InvalidRequestError
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams


@dataclass(slots=True, kw_only=True)
class Held:
    """A request's state: prompt and emitted ``tokens``, how many of them have KV, and the blocks that hold it.

    Of ``num_final`` tokens no later step rewrites the KV. ``drafts`` are guesses of the tokens that follow, to be
    verified; ``max_drafts`` bounds them, None does not.
    """

    tokens: list[int]
    num_prompt: int
    num_computed: int
    blocks: list[int]
    sampling: SamplingParams
    stopping: StopParams
    max_drafts: int | None = None
    num_final: int = 0
    drafts: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, new: NewRequest) -> "Held":
        return cls(
            tokens=list(new.tokens),
            num_prompt=new.num_prompt,
            num_computed=new.num_computed,
            blocks=list(new.blocks),
            sampling=new.sampling,
            stopping=new.stopping,
            max_drafts=new.max_drafts,
            num_final=new.num_computed,
        )

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def ended(self) -> bool:
        """Whether the scheduler ends the request by itself after its last token."""
        stopping = self.stopping
        return self.num_emitted >= stopping.max_tokens or self.tokens[-1] in stopping.stop_token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a worker can take. Blocks are 1 to ``num_blocks - 1``: the null block is not for requests."""

    vocab_size: int
    max_len: int
    block_size: int
    num_blocks: int


def check_step(step: Step, held: Mapping[int, Held], bounds: Bounds) -> None:
    """Raises InvalidRequestError if ``step`` cannot be carried out whole on the ``held`` requests."""
    _check_blocks((block for block, _ in step.sealed), bounds)
    gone = set(step.released)
    known = {handle: request for handle, request in held.items() if handle not in gone}
    for new in step.fresh:
        _require(new.handle not in known, f"request {new.handle} is held already")
        _check_new(new, bounds)
        known[new.handle] = Held.of(new)
    _require(len({row.handle for row in step.rows}) == len(step.rows), "two rows are of one request")
    written: set[int] = set()
    for row in step.rows:
        _require(row.handle in known, f"request {row.handle} is not held")
        blocks = _check_row(row, known[row.handle], bounds)
        _require(written.isdisjoint(blocks), f"request {row.handle} writes into another's block")
        written.update(blocks)


def _check_new(new: NewRequest, bounds: Bounds) -> None:
    name = f"request {new.handle}"
    _check_blocks(new.blocks, bounds)
    _require(0 < new.num_prompt <= len(new.tokens), f"{name} has {len(new.tokens)} tokens, prompt {new.num_prompt}")
    _require(len(new.tokens) <= bounds.max_len, f"{name} has {len(new.tokens)} tokens, at most {bounds.max_len} fit")
    _require(min(new.tokens) >= 0 and max(new.tokens) < bounds.vocab_size, f"{name} has a token outside the vocabulary")
    _require(new.num_computed == len(new.hit_keys) * bounds.block_size, f"{name}: hits are not whole blocks")
    _require(len(new.hit_keys) <= len(new.blocks), f"{name} has fewer blocks than hits")
    _require(new.num_computed < len(new.tokens), f"{name} has nothing left to compute")
    named = {*new.sampling.logit_bias, *new.stopping.stop_token_ids}
    _require(all(0 <= token < bounds.vocab_size for token in named), f"{name} names a token outside the vocabulary")


def _check_row(row: Row, request: Held, bounds: Bounds) -> Sequence[int]:
    """The blocks that the row, or the drafting after it, writes into."""
    name = f"request {row.handle}"
    _check_blocks(row.new_blocks, bounds)
    end = request.num_computed + row.num_new
    _require(row.num_new > 0, f"{name} has no token to compute")
    _require(end <= len(request.tokens), f"{name} is to compute {end} of {len(request.tokens)} tokens")
    _require(0 <= row.num_drafts <= len(request.drafts), f"{name} has {len(request.drafts)} drafts to verify")
    _require(not row.num_drafts or end == len(request.tokens), f"{name} verifies drafts before its last token")
    end += row.num_drafts
    _require(end <= bounds.max_len, f"{name} is to go beyond {bounds.max_len} tokens")
    blocks = [*request.blocks, *row.new_blocks]
    _require(end <= len(blocks) * bounds.block_size, f"{name} has {len(blocks)} blocks, too few for {end} tokens")
    return blocks[request.num_final // bounds.block_size : (end - 1) // bounds.block_size + 1]


def _check_blocks(blocks: Iterable[int], bounds: Bounds) -> None:
    _require(
        all(0 < block < bounds.num_blocks for block in blocks), f"a block is not among 1 to {bounds.num_blocks - 1}"
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidRequestError(message)
