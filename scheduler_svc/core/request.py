"""One request as the scheduler knows it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from augury.geometry import KvGroup
from augury.types import EndReason, Generation, Granted, NewRequest, Row
from scheduler_svc.core.accounts import Account
from scheduler_svc.core.table import Table

Blocks = tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """``num_computed`` chases the known tokens; there are no phases.

    ``tokens`` are known: prompt, then emitted. Of ``num_final`` tokens no later step rewrites the KV; ``num_drafts``
    wait at the worker to be verified. ``keys`` are its block keys as far as computed, those of the
    domain ``keys_of`` (Names).

    ``tables`` are the block tables leased from the KV service, one for each group, none while it waits. They hold
    ``capacity`` slots; of their blocks the worker does not know ``undelivered`` yet. Once ``seal_at`` tokens are
    computed there may be some to seal. ``row`` is its share of the last step.

    ``denied_at`` is what the pool had available when it last denied the request. A ``doubtful`` one had a lease that
    left too little for others, since less was hit than hoped: it is admitted where it fits without any hit.

    ``account`` is its client's at the lane. Of the tokens it came with ``unpaid`` were neither hit nor computed yet.
    ``place`` is its place among its client's requests (FairQueue), as long as it has one.
    """

    handle: int
    generation: Generation
    arrival: int
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_final: int = 0
    num_drafts: int = 0
    keys: list[list[bytes]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    capacity: int = 0
    undelivered: Blocks = ()
    seal_at: int = 0
    row: Row | None = None
    num_cached: int | None = None
    denied_at: int | None = None
    doubtful: bool = False
    keys_of: str | None = None
    account: Account = field(default_factory=lambda: Account(num_requests=1))
    unpaid: int = field(init=False)
    place: int | None = None

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = [*self.generation.prompt, *self.generation.emitted]
        self.unpaid = self._num_brought

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - len(self.generation.prompt)

    @property
    def remaining(self) -> int:
        """Known tokens to compute."""
        return len(self.tokens) - self.num_computed

    @property
    def _num_brought(self) -> int:
        """Tokens it came with."""
        return len(self.generation.prompt) + len(self.generation.emitted)

    @property
    def num_held(self) -> int:
        """Real blocks of the lease."""
        return sum(table.num_held for table in self.tables)

    def lease(self, granted: Granted, groups: Sequence[KvGroup]) -> None:
        """Take a new lease, and with it the tokens that are computed already."""
        self.num_computed = self.num_final = granted.num_computed
        self.tables = [
            Table.granted(blocks, granted.num_computed // group.block_size, first_own)
            for group, blocks, first_own in zip(groups, granted.blocks, granted.num_sealed, strict=True)
        ]
        self.denied_at, self.doubtful = None, False
        self._measure(groups)

    def grow(self, granted: Granted | None, groups: Sequence[KvGroup]) -> None:
        """The answer to a growth: blocks are appended, and what no window reaches any more is dead, if denied too."""
        for group, table in zip(groups, self.tables, strict=True):
            table.num_dead = max(table.num_dead, group.num_skipped(self.num_computed))
        if granted is None:
            return
        assert not self.undelivered, "a request grows again before it has run"
        for table, blocks in zip(self.tables, granted.blocks, strict=True):
            table.blocks.extend(blocks)
        self.undelivered = granted.blocks
        self._measure(groups)

    def share(self, num_new: int, num_drafts: int) -> Row:
        """The request's share of a step; it delivers blocks, once. One like the last is not made anew."""
        row = self.row
        alike = row is not None and row.num_new == num_new and row.num_drafts == num_drafts and not row.new_blocks
        if row is None or not alike or self.undelivered:
            row = Row(handle=self.handle, num_new=num_new, num_drafts=num_drafts, new_blocks=self.undelivered)
            self.row, self.undelivered = row, ()
        return row

    def pay(self, weight: int = 1) -> None:
        """Charge its client for the tokens it came with that are computed now; ``weight`` 0 where they were hit."""
        unpaid = min(self.unpaid, max(self._num_brought - self.num_computed, 0))
        self.account.served += weight * (self.unpaid - unpaid)
        self.unpaid = unpaid

    def fresh(self, granted: Granted, hits: Sequence[tuple[int, bytes]]) -> NewRequest:
        """The request as a worker must know it that does not."""
        generation = self.generation
        return NewRequest(
            handle=self.handle,
            tokens=tuple(self.tokens),
            num_prompt=len(generation.prompt),
            num_computed=self.num_computed,
            blocks=granted.blocks,
            hits=tuple(hits),
            sampling=generation.sampling,
            stopping=generation.stopping,
            max_drafts=generation.max_drafts,
            inputs=generation.inputs,
            trace=generation.trace,
        )

    def restart(self) -> None:
        """Back to nothing computed and nothing leased: what a preemption, a fence or a move to another worker means."""
        self.num_computed = self.num_final = self.num_drafts = self.capacity = self.seal_at = 0
        self.tables, self.undelivered, self.row = [], (), None
        self.denied_at, self.doubtful = None, False

    def take(self, emitted: Sequence[int]) -> tuple[int, EndReason | None]:
        """Append tokens until the request ends; returns how many, and why it ended if it did."""
        tokens, stopping = self.tokens, self.generation.stopping
        before = len(tokens) - len(self.generation.prompt)
        for count, token in enumerate(emitted, 1):
            tokens.append(token)
            if token in stopping.stop_token_ids and before + count > stopping.min_tokens:
                return count, EndReason.STOP
            if before + count >= stopping.max_tokens:
                return count, EndReason.LENGTH
        return len(emitted), None

    def _measure(self, groups: Sequence[KvGroup]) -> None:
        self.capacity = min(
            len(table.blocks) * group.block_size for group, table in zip(groups, self.tables, strict=True)
        )
