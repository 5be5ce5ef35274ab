"""What is fixed about one worker, what is owed to it and to its pool, and what is counted."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from augury.geometry import KvGroup, max_slots, peak_blocks, scheduler_block
from augury.types import Miss, Seal
from scheduler_svc.core.chunking import min_budget
from scheduler_svc.core.policy import Policy


class KeyLookahead(Enum):
    """How the key that a block is found under proves the lookahead after it, which its draft KV depends on (rule E).

    AUTO: keys cover the lookahead. OFF: keys cover their block only, and a block is known by the key of a later one,
    so that a hit ends whole blocks before the last match.
    """

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """A worker's geometry and the scheduling settings. ``num_blocks`` counts the null block.

    ``num_prefill_lookahead`` is mtp_semantics rule A, ``max_drafts`` the slots a step may write past the known tokens.
    Raises ValueError if the token budget cannot advance a prompt, or no prefix could ever be hit.
    """

    pool: str
    fingerprint: str
    num_blocks: int
    groups: tuple[KvGroup, ...]
    max_model_len: int
    max_batched_tokens: int
    max_running: int
    policy: Policy = Policy.FAIR
    prefix_caching: bool = True
    key_lookahead: KeyLookahead = KeyLookahead.AUTO
    num_prefill_lookahead: int = 0
    max_drafts: int = 0
    encoder_budget: int = 0
    encoder_cache: int = 0

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError(f"worker {self.pool} has no KV group")
        least = min_budget(self.num_prefill_lookahead, self.max_drafts)
        if self.max_batched_tokens < least:
            raise ValueError(
                f"scheduler.max_batched_tokens is {self.max_batched_tokens}, but a lookahead of "
                f"{self.num_prefill_lookahead} and {self.max_drafts} drafts need at least {least}"
            )
        if self.prefix_caching:
            for index, group in enumerate(self.groups):
                self._check_margin(index, group)

    @property
    def max_len(self) -> int:
        """The longest sequence, in tokens, that the model can see and the pool can hold for one request alone."""
        ahead = self.max_batched_tokens + self.max_drafts
        return max_slots(self.groups, self.num_blocks, ahead, self.max_model_len + self.max_drafts) - self.max_drafts

    @property
    def num_usable(self) -> int:
        """Blocks that requests can have."""
        return self.num_blocks - 1

    @property
    def has_windows(self) -> bool:
        """Whether a request gets slots of some group only as it reaches them."""
        return any(group.window is not None for group in self.groups)

    def peak(self, num_tokens: int) -> int:
        """Blocks that a request of ``num_tokens`` in all holds at most."""
        ahead = min(num_tokens, self.max_batched_tokens)
        return peak_blocks(self.groups, num_tokens + self.max_drafts, ahead + self.max_drafts)

    def key_reach(self, group: KvGroup) -> int:
        """Tokens after a block of ``group`` that its key covers."""
        covers = group.has_drafts and self.key_lookahead is KeyLookahead.AUTO
        return self.num_prefill_lookahead if covers else 0

    def key_margin(self, group: KvGroup) -> int:
        """A block of ``group`` is known by the key of the block so many places after it."""
        if not group.has_drafts:
            return 0
        return -(-(self.num_prefill_lookahead - self.key_reach(group)) // group.block_size)

    def _check_margin(self, index: int, group: KvGroup) -> None:
        margin, shortest = self.key_margin(group), scheduler_block(self.groups)
        if margin and self.max_len <= shortest + margin * group.block_size:
            raise ValueError(
                f"kv.key_lookahead is off, so a prefix hit of {shortest} tokens needs {margin} more blocks of "
                f"{group.block_size} tokens in KV group {index}: they do not fit within {self.max_len} tokens"
            )


@dataclass(slots=True)
class Debts:
    """What the next proposal (seals, releases, forgotten keys) and the next step (tags, dropped handles) must carry.

    ``num_returning`` blocks are in the releases: an upper bound of what they bring, since blocks may be shared.
    ``sent`` are forgotten keys of a proposal not answered yet.
    """

    seals: list[Seal] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    num_returning: int = 0
    forgotten: list[bytes] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    tags: list[tuple[int, bytes]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Totals since the worker registered; tokens, except where named otherwise.

    ``misses[reason]`` lookups ended short for that reason. ``num_drafts`` counts steps of a request that verified
    drafts, ``accepted_at[i]`` how often draft i of a step became text, ``accepted_lengths[k]`` how often k of a step's
    drafts did.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    misses: Counter[Miss] = field(default_factory=Counter)
    num_preemptions: int = 0
    num_iterations: int = 0
    iteration_tokens: list[int] = field(default_factory=list)
    total_iteration_tokens: int = 0
    num_refused: int = 0
    num_drafts: int = 0
    draft_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)

    def count_iteration(self, num_tokens: int) -> None:
        """A step of so many tokens, drafts included."""
        self.num_iterations += 1
        self.total_iteration_tokens += num_tokens
        bits = num_tokens.bit_length()
        self.iteration_tokens.extend([0] * (bits + 1 - len(self.iteration_tokens)))
        self.iteration_tokens[bits] += 1

    def count_drafts(self, num_drafts: int, num_accepted: int) -> None:
        """One request's step verified ``num_drafts`` drafts, of which the first ``num_accepted`` became text."""
        self.num_drafts += 1
        self.draft_tokens += num_drafts
        self.accepted_at.extend([0] * (num_drafts - len(self.accepted_at)))
        self.accepted_lengths.extend([0] * (num_drafts + 1 - len(self.accepted_lengths)))
        for position in range(num_accepted):
            self.accepted_at[position] += 1
        self.accepted_lengths[num_accepted] += 1
