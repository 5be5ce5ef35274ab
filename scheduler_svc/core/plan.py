"""Which requests run in a step, and with how many known tokens and drafts each."""

from collections.abc import Iterable
from dataclasses import replace

from augury.types import Row
from scheduler_svc.core.chunking import chunk, share_budget
from scheduler_svc.core.encoder import EncoderCache, Span
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.request import Request

Shares = Iterable[tuple[Request, int]]
"""Requests and the tokens of the step that each may take."""


def plan(
    config: LaneConfig, ready: Iterable[Request], encoder: EncoderCache | None = None
) -> list[tuple[Request, Row]]:
    """The rows of a step over ``ready``, requests with slots in policy order: decodes first."""
    prompts, decodes = list[Request](), list[Request]()
    for request in ready:
        (prompts if len(request.tokens) - request.num_computed > 1 else decodes).append(request)
    prompt_sizes, decode_sizes = share_budget(
        [request.remaining for request in prompts],
        [1 + usable_drafts(request) if request.num_drafts else 1 for request in decodes],
        config.max_batched_tokens,
        config.num_prefill_lookahead,
    )
    decoding = zip(decodes, decode_sizes, strict=True)
    prefilling = zip(prompts, prompt_sizes, strict=True)
    if encoder is not None:
        return _with_inputs(config, encoder, decoding, prefilling)
    rows = [(r, r.share(1, size - 1)) for r, size in decoding if size]
    rows += [(r, r.share(size, 0)) for r, size in prefilling if size]
    return rows


def _with_inputs(
    config: LaneConfig, encoder: EncoderCache, decoding: Shares, prefilling: Shares
) -> list[tuple[Request, Row]]:
    """The same where rows may have to wait for an encoder input: the prompts behind them get what they leave."""
    encoder.begin()
    rows: list[tuple[Request, Row]] = []
    spare = 0
    for request, size in decoding:
        row = _encoded(encoder, request, 1, size - 1) if size else None
        spare += 0 if row else size
        rows += [(request, row)] if row else []
    for request, share in prefilling:
        size = chunk(request.remaining, share + spare, config.num_prefill_lookahead)
        row = _encoded(encoder, request, size, 0) if size else None
        spare += share - (row.num_new if row else 0)
        rows += [(request, row)] if row else []
    return rows


def _encoded(encoder: EncoderCache, request: Request, num_new: int, num_drafts: int) -> Row | None:
    """The request's row, as far as its encoder inputs allow; None where that is not at all."""
    inputs = request.generation.inputs
    if not inputs or request.num_computed >= len(request.generation.prompt):
        return request.share(num_new, num_drafts)
    span = Span(start=request.num_computed, size=num_new, remaining=request.remaining)
    size, encoded = encoder.admit(request.handle, inputs, span)
    if size == 0:
        return None
    row = request.share(size, num_drafts)
    return replace(row, encoded=encoded) if encoded else row


def usable_drafts(request: Request) -> int:
    """Drafts worth verifying: within the client's bound, and not past the last token it wants."""
    generation = request.generation
    wanted = generation.stopping.max_tokens - request.num_emitted - 1
    bound = wanted if generation.max_drafts is None else min(wanted, generation.max_drafts)
    return min(request.num_drafts, bound)
