"""One step's ragged batch: the new tokens of all rows one after another, without padding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker_svc.kv import NULL_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One request's part of a batch.

    Its ``num_new`` tokens stand at ``start`` of the batch and are the last of ``num_context`` tokens, whose KV lies in
    ``blocks``. The last ``num_logits`` of them are followed by a draw each.
    """

    start: int
    num_new: int
    num_context: int
    blocks: Sequence[int]
    num_logits: int = 0

    @property
    def num_computed(self) -> int:
        return self.num_context - self.num_new


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tensors are int64: T new tokens in all, N of them followed by a draw."""

    token_ids: Tensor
    """[T]"""
    positions: Tensor
    """[T] index of the token in its request"""
    slots: Tensor
    """[T] where the token's KV goes"""
    logits_rows: Tensor
    """[N] index into the batch"""


def make_batch(tokens: Sequence[Sequence[int]], spans: Sequence[Span], block_size: int) -> Batch:
    """The batch of ``spans``, which stand in order; ``tokens`` are the new tokens of each."""
    return Batch(
        token_ids=torch.tensor([token for row in tokens for token in row]),
        positions=torch.tensor([p for span in spans for p in range(span.num_computed, span.num_context)]),
        slots=torch.tensor(
            [slot for s in spans for slot in slots(s.blocks, range(s.num_computed, s.num_context), block_size)]
        ),
        logits_rows=torch.tensor(_logits_rows(spans), dtype=torch.int64),
    )


def block_tables(spans: Sequence[Span], block_size: int) -> Tensor:
    """[len(spans), M] the blocks of each context, where M is what the longest needs; the null block past an end."""
    counts = [-(-span.num_context // block_size) for span in spans]
    tables = torch.full((len(spans), max(counts)), NULL_BLOCK)
    for table, span, count in zip(tables, spans, counts, strict=True):
        table[:count] = torch.tensor(span.blocks[:count])
    return tables


def slots(blocks: Sequence[int], positions: Iterable[int], block_size: int) -> list[int]:
    """Where the KV of ``positions`` lies in a request whose table is ``blocks``."""
    return [blocks[position // block_size] * block_size + position % block_size for position in positions]


def _logits_rows(spans: Sequence[Span]) -> list[int]:
    return [row for s in spans for row in range(s.start + s.num_new - s.num_logits, s.start + s.num_new)]
