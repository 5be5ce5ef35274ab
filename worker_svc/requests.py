"""The requests a worker holds, and the check of a step against them before anything is changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from augury.errors import InvalidRequestError
from augury.geometry import NULL_BLOCK, KvGroup
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams


@dataclass(slots=True, kw_only=True)
class Held:
    """A request's state: prompt and emitted ``tokens``, how many of them have KV, and each group's table of ``blocks``.

    Of ``num_final`` tokens no later step rewrites the KV. ``drafts`` are guesses of the tokens that follow, to be
    verified; ``max_drafts`` bounds them, None does not.
    """

    tokens: list[int]
    num_prompt: int
    num_computed: int
    blocks: list[list[int]]
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
            blocks=[list(table) for table in new.blocks],
            sampling=new.sampling,
            stopping=new.stopping,
            max_drafts=new.max_drafts,
            num_final=new.num_computed,
        )

    def extend(self, new_blocks: Sequence[Sequence[int]]) -> None:
        """Append to each group's table, or, if empty, to none."""
        if new_blocks:
            for table, more in zip(self.blocks, new_blocks, strict=True):
                table.extend(more)

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
    """What a worker can take. Blocks are 0 to ``num_blocks - 1``, the null block among them."""

    vocab_size: int
    max_len: int
    num_blocks: int
    groups: tuple[KvGroup, ...]


def check_step(step: Step, held: Mapping[int, Held], bounds: Bounds) -> None:
    """Raises InvalidRequestError if ``step`` cannot be carried out whole on the ``held`` requests."""
    sealed = [block for block, _ in step.sealed]
    _require(NULL_BLOCK not in sealed, "the null block cannot be sealed")
    _check_blocks(sealed, bounds)
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
        for block in _check_row(row, known[row.handle], bounds):
            _require(block not in written, f"request {row.handle} writes into a block that is written already")
            written.add(block)


def _check_new(new: NewRequest, bounds: Bounds) -> None:
    name = f"request {new.handle}"
    _require(0 < new.num_prompt <= len(new.tokens), f"{name} has {len(new.tokens)} tokens, prompt {new.num_prompt}")
    _require(len(new.tokens) <= bounds.max_len, f"{name} has {len(new.tokens)} tokens, at most {bounds.max_len} fit")
    _require(min(new.tokens) >= 0 and max(new.tokens) < bounds.vocab_size, f"{name} has a token outside the vocabulary")
    _require(0 <= new.num_computed < len(new.tokens), f"{name} has nothing left to compute")
    _check_tables(new, bounds)
    named = {*new.sampling.logit_bias, *new.stopping.stop_token_ids}
    _require(all(0 <= token < bounds.vocab_size for token in named), f"{name} names a token outside the vocabulary")


def _check_tables(new: NewRequest, bounds: Bounds) -> None:
    name, num_groups = f"request {new.handle}", len(bounds.groups)
    _require(len(new.blocks) == num_groups, f"{name} has {len(new.blocks)} block tables for {num_groups} groups")
    hit: list[int] = []
    for group, table in zip(bounds.groups, new.blocks, strict=True):
        num_hit = new.num_computed // group.block_size
        _require(new.num_computed % group.block_size == 0, f"{name}: hits are not whole blocks")
        _require(num_hit <= len(table), f"{name} has fewer blocks than hits")
        _check_blocks(table, bounds)
        rebuilt = group.num_rebuilt is not None and not any(table[:num_hit])
        _check_present(name, table, num_hit if rebuilt else group.num_skipped(new.num_computed))
        hit.extend(block for block in table[:num_hit] if block != NULL_BLOCK)
    _require(sorted(hit) == sorted(block for block, _ in new.hits), f"{name}: other blocks have keys than are hit")


def _check_row(row: Row, request: Held, bounds: Bounds) -> list[int]:
    """The blocks that the row, or the drafting after it, writes into."""
    name = f"request {row.handle}"
    end = request.num_computed + row.num_new
    _require(row.num_new > 0, f"{name} has no token to compute")
    _require(end <= len(request.tokens), f"{name} is to compute {end} of {len(request.tokens)} tokens")
    _require(0 <= row.num_drafts <= len(request.drafts), f"{name} has {len(request.drafts)} drafts to verify")
    _require(not row.num_drafts or end == len(request.tokens), f"{name} verifies drafts before its last token")
    end += row.num_drafts
    _require(end <= bounds.max_len, f"{name} is to go beyond {bounds.max_len} tokens")
    _require(len(row.new_blocks) in (0, len(bounds.groups)), f"{name} is given blocks of {len(row.new_blocks)} groups")
    written: list[int] = []
    for index, (group, table) in enumerate(zip(bounds.groups, request.blocks, strict=True)):
        added = row.new_blocks[index] if row.new_blocks else ()
        _check_blocks(added, bounds)
        _check_present(name, added, group.num_skipped(request.num_computed) - len(table))
        num_blocks = len(table) + len(added)
        _require(end <= num_blocks * group.block_size, f"{name} has {num_blocks} blocks, too few for {end} tokens")
        first = (request.num_final if group.has_drafts else request.num_computed) // group.block_size
        written += [*table[first:], *added][: (end - 1) // group.block_size + 1 - first]
    return written


def _check_blocks(blocks: Sequence[int], bounds: Bounds) -> None:
    _require(all(0 <= block < bounds.num_blocks for block in blocks), f"a block is beyond the {bounds.num_blocks} here")


def _check_present(name: str, table: Sequence[int], num_dead: int) -> None:
    """Only the first ``num_dead`` entries may be null."""
    _require(NULL_BLOCK not in table[max(0, num_dead) :], f"{name} has the null block where it needs KV")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidRequestError(message)
