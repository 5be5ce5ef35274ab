"""What is fixed about one worker, what is owed to it and to its pool, and what is counted."""

from dataclasses import dataclass, field

from augury.types import Seal
from scheduler_svc.core.chunking import min_budget
from scheduler_svc.core.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """A worker's geometry and the scheduling settings. ``num_blocks`` counts the null block.

    ``num_prefill_lookahead`` is mtp_semantics rule A, ``max_drafts`` the slots a step may write past the known tokens.
    Raises ValueError if the token budget cannot advance a prompt.
    """

    pool: str
    fingerprint: str
    num_blocks: int
    block_size: int
    max_model_len: int
    max_batched_tokens: int
    max_running: int
    policy: Policy = Policy.FCFS
    prefix_caching: bool = True
    num_prefill_lookahead: int = 0
    max_drafts: int = 0

    def __post_init__(self) -> None:
        least = min_budget(self.num_prefill_lookahead, self.max_drafts)
        if self.max_batched_tokens < least:
            raise ValueError(
                f"scheduler.max_batched_tokens is {self.max_batched_tokens}, but a lookahead of "
                f"{self.num_prefill_lookahead} and {self.max_drafts} drafts need at least {least}"
            )

    @property
    def max_len(self) -> int:
        """The longest sequence, in tokens, that the model can see and the pool can hold for one request alone."""
        slots = (self.num_blocks - 1) * self.block_size - self.max_drafts
        return min(self.max_model_len, slots)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` and the drafts' slots after them."""
        return -(-(num_tokens + self.max_drafts) // self.block_size)


@dataclass(slots=True)
class Debts:
    """What the next proposal (seals, releases, forgotten keys) and the next step (tags, dropped handles) must carry.

    ``num_returning`` blocks are in the releases: an upper bound of what they bring, since blocks may be shared.
    """

    seals: list[Seal] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    num_returning: int = 0
    forgotten: list[bytes] = field(default_factory=list)
    tags: list[tuple[int, bytes]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Totals since the worker registered; tokens, except where named otherwise.

    ``num_drafts`` counts steps of a request that verified drafts, ``accepted_at[i]`` how often draft i was accepted.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    num_iterations: int = 0
    num_refused: int = 0
    num_drafts: int = 0
    draft_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def count_drafts(self, num_drafts: int, num_accepted: int) -> None:
        """One request's step verified ``num_drafts`` drafts, of which the first ``num_accepted`` became text."""
        self.num_drafts += 1
        self.draft_tokens += num_drafts
        self.accepted_at.extend([0] * (num_drafts - len(self.accepted_at)))
        for position in range(num_accepted):
            self.accepted_at[position] += 1
