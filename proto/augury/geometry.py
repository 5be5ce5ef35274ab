"""KV groups and the one arithmetic of their blocks: sizing a pool, admitting a request and freeing use it alike.

Layers that see the same positions share a *group*, and so one block table per request. All groups draw block numbers
from one pool. A window group holds real blocks only where a window can still reach; the null block stands elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

NULL_BLOCK = 0
"""Stands for "no KV here" in a block table; never handed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers that share one block table.

    ``window`` positions are seen by a query, its own included; None is all. ``has_drafts``: a layer of an MTP module is
    among them, so that its KV depends on tokens to the right. ``num_retained`` is E of mtp_semantics rule F: computed
    rows at the end that a module may still write. ``num_rebuilt`` rows computed without any KV before them make the
    rows after them exact; None where nothing short of all rows does.
    """

    block_size: int
    window: int | None = None
    has_drafts: bool = False
    num_retained: int = 0
    num_rebuilt: int | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1 or (self.window is not None and self.window < 1):
            raise ValueError(f"a block and a window hold at least one token, got {self}")
        if self.num_retained < 0 or (self.num_retained and self.window is None):
            raise ValueError(f"only a window has a retained tail, got {self}")
        if self.num_rebuilt is not None and not (self.has_drafts and self.window is not None):
            raise ValueError(f"only draft layers behind a window can be rebuilt from a tail, got {self}")

    def num_blocks(self, num_slots: int) -> int:
        """Length of a block table that holds ``num_slots`` slots."""
        return -(-num_slots // self.block_size)

    def num_skipped(self, num_computed: int) -> int:
        """Leading table entries that no later query of a request with ``num_computed`` computed tokens reads (§3.8)."""
        if self.window is None:
            return 0
        return max(0, num_computed - self.window + 1 - self.num_retained) // self.block_size

    def table_length(self, num_slots: int, num_reached: int) -> int:
        """Entries that the table of a request of ``num_slots`` slots must have to write the first ``num_reached``.

        A window group is given slots as the request reaches them, another one all of them at once.
        """
        return self.num_blocks(num_slots if self.window is None else min(num_slots, num_reached))

    def peak(self, num_slots: int, num_ahead: int) -> int:
        """Real blocks that a request of ``num_slots`` slots holds at most, whose steps each write up to ``num_ahead``
        slots past its computed tokens, drafts included (mtp_semantics §3.8, where the reference forgets the drafts).
        """
        whole = self.num_blocks(num_slots)
        if self.window is None:
            return whole
        return min(whole, self.num_blocks(self.window - 1 + self.num_retained + num_ahead) + 1)


def scheduler_block(groups: Sequence[KvGroup]) -> int:
    """Tokens to a multiple of which a prefix hit common to all groups is cut."""
    return lcm(*(group.block_size for group in groups))


def hash_block(groups: Sequence[KvGroup]) -> int:
    """Tokens from one block key to the next."""
    return gcd(*(group.block_size for group in groups))


def peak_blocks(groups: Sequence[KvGroup], num_slots: int, num_ahead: int) -> int:
    """Real blocks that a request needs at most, over all groups."""
    return sum(group.peak(num_slots, num_ahead) for group in groups)


def max_slots(groups: Sequence[KvGroup], num_blocks: int, num_ahead: int, limit: int) -> int:
    """Slots of the longest request, at most ``limit``, that a pool of ``num_blocks``, the null block among them, can
    hold alone. Binary search: the peak grows with the slots.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if peak_blocks(groups, middle, num_ahead) <= num_blocks - 1:
            low = middle
        else:
            high = middle - 1
    return low
