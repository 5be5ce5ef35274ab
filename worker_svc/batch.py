"""One step's ragged batch: the new tokens of all rows one after another, without padding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from augury.geometry import NULL_BLOCK
from worker_svc.device import CPU, upload
from worker_svc.model.groups import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One request's part of a batch.

    Its ``num_new`` tokens stand at ``start`` of the batch and are the last of ``num_context`` tokens, whose KV lies in
    ``blocks[group]``. The last ``num_logits`` of them are followed by a draw each.
    """

    start: int
    num_new: int
    num_context: int
    blocks: Sequence[Sequence[int]]
    num_logits: int = 0

    @property
    def num_computed(self) -> int:
        return self.num_context - self.num_new

    def reach(self, window: int | None, block_size: int) -> range:
        """Entries of a block table that the new tokens see. Those before may be somebody else's blocks."""
        first = 0 if window is None else max(0, self.num_computed + 1 - window) // block_size
        return range(first, -(-self.num_context // block_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tensors are int64: T new tokens in all, N of them followed by a draw."""

    token_ids: Tensor
    """[T]"""
    positions: Tensor
    """[T] index of the token in its request"""
    slots: Sequence[Tensor]
    """[T] for each group: where the token's KV goes"""
    logits_rows: Tensor
    """[N] index into the batch"""


def make_batch(
    tokens: Sequence[Sequence[int]], spans: Sequence[Span], block_size: int, device: torch.device = CPU
) -> Batch:
    """The batch of ``spans``, which stand in order; ``tokens`` are the new tokens of each."""
    places = [range(span.num_computed, span.num_context) for span in spans]
    group_slots = [
        [slot for table, place in zip(tables, places, strict=True) for slot in slots(table, place, block_size)]
        for tables in zip(*(span.blocks for span in spans), strict=True)
    ]
    return Batch(
        token_ids=upload([token for row in tokens for token in row], device),
        positions=upload([position for place in places for position in place], device),
        slots=[upload(values, device) for values in group_slots],
        logits_rows=upload(_logits_rows(spans), device),
    )


def reached_blocks(span: Span, view: View, block_size: int) -> Sequence[int]:
    """The blocks that the span's new tokens see."""
    reach = span.reach(view.window, block_size)
    return span.blocks[view.group][reach.start : reach.stop]


def block_tables(spans: Sequence[Span], view: View, block_size: int, device: torch.device = CPU) -> Tensor:
    """[len(spans), M] the blocks that each span reaches, where M is the most of them; the null block past an end."""
    tables = [reached_blocks(span, view, block_size) for span in spans]
    width = max(map(len, tables))
    return upload([[*table, *[NULL_BLOCK] * (width - len(table))] for table in tables], device)


def slots(blocks: Sequence[int], positions: Iterable[int], block_size: int) -> list[int]:
    """Where the KV of ``positions`` lies in a request whose table is ``blocks``."""
    return [blocks[position // block_size] * block_size + position % block_size for position in positions]


def _logits_rows(spans: Sequence[Span]) -> list[int]:
    return [row for s in spans for row in range(s.start + s.num_new - s.num_logits, s.start + s.num_new)]
