"""One step's ragged batch: the new tokens of all rows one after another, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker_svc.kv import NULL_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One request's part of a batch.

    Its ``num_new`` tokens stand at ``start`` of the batch and are the last of ``num_context`` tokens, whose KV lies in
    ``blocks``. ``samples`` says whether a token is drawn after the last one.
    """

    start: int
    num_new: int
    num_context: int
    blocks: Sequence[int]
    samples: bool

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
    spans: tuple[Span, ...]
    block_size: int


def make_batch(tokens: Sequence[Sequence[int]], spans: Sequence[Span], block_size: int) -> Batch:
    """The batch of ``spans``, which stand in order; ``tokens`` are the new tokens of each."""
    return Batch(
        token_ids=torch.tensor([token for row in tokens for token in row]),
        positions=torch.tensor([p for span in spans for p in range(span.num_computed, span.num_context)]),
        slots=torch.tensor([slot for span in spans for slot in _new_slots(span, block_size)]),
        logits_rows=torch.tensor([span.start + span.num_new - 1 for span in spans if span.samples], dtype=torch.int64),
        spans=tuple(spans),
        block_size=block_size,
    )


def block_tables(spans: Sequence[Span], block_size: int) -> Tensor:
    """[len(spans), M] the blocks of each context, where M is what the longest needs; the null block past an end."""
    counts = [-(-span.num_context // block_size) for span in spans]
    tables = torch.full((len(spans), max(counts)), NULL_BLOCK)
    for table, span, count in zip(tables, spans, counts, strict=True):
        table[:count] = torch.tensor(span.blocks[:count])
    return tables


def _new_slots(span: Span, block_size: int) -> list[int]:
    return [
        span.blocks[position // block_size] * block_size + position % block_size
        for position in range(span.num_computed, span.num_context)
    ]
