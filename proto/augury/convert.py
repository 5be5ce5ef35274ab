"""Wire messages to data types and back: the only file that touches both."""

from collections.abc import Sequence

from augury import errors
from augury.columns import flat, ints, longs, same_length, split, to_ints, to_keys, to_longs
from augury.errors import InvalidRequestError
from augury.types import (
    Delta,
    Description,
    Ended,
    EndReason,
    Generation,
    Grant,
    Granted,
    NewRequest,
    Outcome,
    PoolSpec,
    Proposal,
    Reserve,
    Row,
    SamplingParams,
    Seal,
    Step,
    StopParams,
    WorkerInfo,
    WorkerStatus,
)
from augury.v1 import common_pb2, kvcache_pb2, scheduler_pb2, worker_pb2

_REASONS = {
    EndReason.STOP: common_pb2.END_REASON_STOP,
    EndReason.LENGTH: common_pb2.END_REASON_LENGTH,
    EndReason.CANCELLED: common_pb2.END_REASON_CANCELLED,
    EndReason.FAILED: common_pb2.END_REASON_FAILED,
}
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}


# --- gateway and scheduler ---


def _sampling_to_wire(sampling: SamplingParams) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k or 0,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        seed=sampling.seed,
    )


def _sampling_from_wire(wire: common_pb2.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=wire.temperature,
        top_k=wire.top_k or None,
        top_p=wire.top_p,
        min_p=wire.min_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        logit_bias=dict(wire.logit_bias),
        seed=wire.seed,
    )


def _stopping_to_wire(stopping: StopParams) -> common_pb2.StopParams:
    return common_pb2.StopParams(
        max_tokens=stopping.max_tokens, min_tokens=stopping.min_tokens, stop_token_ids=sorted(stopping.stop_token_ids)
    )


def _stopping_from_wire(wire: common_pb2.StopParams) -> StopParams:
    return StopParams(
        max_tokens=wire.max_tokens, min_tokens=wire.min_tokens, stop_token_ids=frozenset(wire.stop_token_ids)
    )


def submit_to_wire(ticket: int, generation: Generation) -> scheduler_pb2.Submit:
    return scheduler_pb2.Submit(
        ticket=ticket,
        request_id=generation.request_id,
        prompt=ints(generation.prompt),
        emitted=ints(generation.emitted),
        sampling=_sampling_to_wire(generation.sampling),
        stopping=_stopping_to_wire(generation.stopping),
        priority=generation.priority,
        cache_salt=generation.cache_salt,
        max_drafts=generation.max_drafts,
    )


def submit_from_wire(wire: scheduler_pb2.Submit) -> Generation:
    return Generation(
        request_id=wire.request_id,
        prompt=tuple(to_ints(wire.prompt)),
        emitted=tuple(to_ints(wire.emitted)),
        sampling=_sampling_from_wire(wire.sampling),
        stopping=_stopping_from_wire(wire.stopping),
        priority=wire.priority,
        cache_salt=wire.cache_salt,
        max_drafts=wire.max_drafts if wire.HasField("max_drafts") else None,
    )


def deltas_to_wire(deltas: Sequence[Delta]) -> scheduler_pb2.ServerMessage:
    """Tokens of all ``deltas`` as columns; a ticket may come twice, its tokens then follow one another."""
    return scheduler_pb2.ServerMessage(
        tickets=longs([delta.ticket for delta in deltas]),
        counts=ints([len(delta.tokens) for delta in deltas]),
        tokens=ints(flat(delta.tokens for delta in deltas)),
        cached=ints([delta.num_cached for delta in deltas]),
        drafts=ints([delta.num_drafts for delta in deltas]),
        accepted=ints([delta.num_accepted for delta in deltas]),
        ended=[_ended_to_wire(delta.ticket, delta.ended) for delta in deltas if delta.ended],
    )


def deltas_from_wire(wire: scheduler_pb2.ServerMessage) -> list[Delta]:
    tickets, counts = to_longs(wire.tickets), to_ints(wire.counts)
    numbers = to_ints(wire.cached), to_ints(wire.drafts), to_ints(wire.accepted)
    same_length(tickets, counts, *numbers)
    ended = {end.ticket: _ended_from_wire(end) for end in wire.ended}
    tokens = split(to_ints(wire.tokens), counts)
    last = {ticket: index for index, ticket in enumerate(tickets)}
    if not ended.keys() <= last.keys():
        raise InvalidRequestError("the column of tickets lacks one that ended")
    return [
        Delta(
            ticket=ticket,
            tokens=part,
            num_cached=num_cached,
            num_drafts=num_drafts,
            num_accepted=num_accepted,
            ended=ended.get(ticket) if last[ticket] == index else None,
        )
        for index, (ticket, part, num_cached, num_drafts, num_accepted) in enumerate(
            zip(tickets, tokens, *numbers, strict=True)
        )
    ]


def _ended_to_wire(ticket: int, ended: Ended) -> scheduler_pb2.Ended:
    return scheduler_pb2.Ended(
        ticket=ticket,
        reason=_REASONS[ended.reason],
        error_code=ended.error_code or "",
        error_message=ended.error_message or "",
    )


def _ended_from_wire(wire: scheduler_pb2.Ended) -> Ended:
    if wire.reason not in _REASONS_BACK:
        raise InvalidRequestError(f"unknown end reason {wire.reason}")
    return Ended(
        reason=_REASONS_BACK[wire.reason],
        error_code=wire.error_code or None,
        error_message=wire.error_message or None,
    )


_STATUS_FIELDS = [name for name in WorkerStatus.__slots__ if name not in ("accepted_at", "accepted_lengths")]


def description_to_wire(description: Description) -> scheduler_pb2.Description:
    return scheduler_pb2.Description(
        model=description.model or "",
        max_model_len=description.max_model_len or 0,
        vocab_size=description.vocab_size or 0,
        num_parked=description.num_parked,
        workers=[
            scheduler_pb2.WorkerState(**{name: getattr(worker, name) for name in WorkerStatus.__slots__})
            for worker in description.workers
        ],
    )


def description_from_wire(wire: scheduler_pb2.Description) -> Description:
    return Description(
        model=wire.model or None,
        max_model_len=wire.max_model_len or None,
        vocab_size=wire.vocab_size or None,
        num_parked=wire.num_parked,
        workers=tuple(
            WorkerStatus(
                accepted_at=tuple(worker.accepted_at),
                accepted_lengths=tuple(worker.accepted_lengths),
                **{name: getattr(worker, name) for name in _STATUS_FIELDS},
            )
            for worker in wire.workers
        ),
    )


# --- worker registration ---

_INFO_FIELDS = WorkerInfo.__slots__


def hello_to_wire(info: WorkerInfo) -> scheduler_pb2.WorkerHello:
    return scheduler_pb2.WorkerHello(**{name: getattr(info, name) for name in _INFO_FIELDS})


def hello_from_wire(wire: scheduler_pb2.WorkerHello) -> WorkerInfo:
    return WorkerInfo(**{name: getattr(wire, name) for name in _INFO_FIELDS})


# --- scheduler and kvcache ---

_POOL_FIELDS = PoolSpec.__slots__


def pool_to_wire(spec: PoolSpec) -> kvcache_pb2.OpenPoolRequest:
    return kvcache_pb2.OpenPoolRequest(**{name: getattr(spec, name) for name in _POOL_FIELDS})


def pool_from_wire(wire: kvcache_pb2.OpenPoolRequest) -> PoolSpec:
    return PoolSpec(**{name: getattr(wire, name) for name in _POOL_FIELDS})


def proposal_to_wire(proposal: Proposal) -> kvcache_pb2.Proposal:
    seals, reserves = proposal.seals, proposal.reserves
    return kvcache_pb2.Proposal(
        pool=proposal.pool,
        epoch=proposal.epoch,
        seq=proposal.seq,
        forgotten_keys=b"".join(proposal.forgotten),
        seal_leases=longs([seal.lease for seal in seals]),
        seal_indices=ints([seal.index for seal in seals]),
        seal_keys=b"".join(seal.key for seal in seals),
        releases=longs(proposal.releases),
        reserve_leases=longs([reserve.lease for reserve in reserves]),
        reserve_slots=ints([reserve.num_slots for reserve in reserves]),
        reserve_key_counts=ints([len(reserve.keys) for reserve in reserves]),
        reserve_keys=b"".join(key for reserve in reserves for key in reserve.keys),
    )


def proposal_from_wire(wire: kvcache_pb2.Proposal) -> Proposal:
    leases, indices, keys = to_longs(wire.seal_leases), to_ints(wire.seal_indices), to_keys(wire.seal_keys)
    same_length(leases, indices, keys)
    wanting, slots = to_longs(wire.reserve_leases), to_ints(wire.reserve_slots)
    counts = to_ints(wire.reserve_key_counts)
    same_length(wanting, slots, counts)
    return Proposal(
        pool=wire.pool,
        epoch=wire.epoch,
        seq=wire.seq,
        forgotten=tuple(to_keys(wire.forgotten_keys)),
        seals=tuple(Seal(lease=a, index=b, key=c) for a, b, c in zip(leases, indices, keys, strict=True)),
        releases=tuple(to_longs(wire.releases)),
        reserves=tuple(
            Reserve(lease=a, num_slots=b, keys=c)
            for a, b, c in zip(wanting, slots, split(to_keys(wire.reserve_keys), counts), strict=True)
        ),
    )


def grant_to_wire(grant: Grant) -> kvcache_pb2.Grant:
    reserves = grant.reserves
    return kvcache_pb2.Grant(
        epoch=grant.epoch,
        seq=grant.seq,
        granted=bytes(granted is not None for granted in reserves),
        hit_blocks=ints([granted.num_hit_blocks if granted else 0 for granted in reserves]),
        block_counts=ints([len(granted.blocks) if granted else 0 for granted in reserves]),
        blocks=ints(flat(granted.blocks for granted in reserves if granted)),
        num_available=grant.num_available,
    )


def refusal_to_wire(proposal: kvcache_pb2.Proposal, error: errors.AuguryError) -> kvcache_pb2.Grant:
    """The answer to a proposal that was refused whole."""
    return kvcache_pb2.Grant(epoch=proposal.epoch, seq=proposal.seq, error_code=error.code, error_message=str(error))


def grant_from_wire(wire: kvcache_pb2.Grant) -> Grant:
    """Raises the AuguryError that the grant carries, if it is a refusal."""
    if wire.error_code:
        raise errors.from_code(wire.error_code, wire.error_message)
    hits, counts = to_ints(wire.hit_blocks), to_ints(wire.block_counts)
    same_length(wire.granted, hits, counts)
    return Grant(
        epoch=wire.epoch,
        seq=wire.seq,
        reserves=tuple(
            Granted(num_hit_blocks=hit, blocks=blocks) if granted else None
            for granted, hit, blocks in zip(wire.granted, hits, split(to_ints(wire.blocks), counts), strict=True)
        ),
        num_available=wire.num_available,
    )


# --- scheduler and worker ---


def _new_request_to_wire(new: NewRequest) -> worker_pb2.NewRequest:
    return worker_pb2.NewRequest(
        handle=new.handle,
        tokens=ints(new.tokens),
        num_prompt=new.num_prompt,
        num_computed=new.num_computed,
        blocks=ints(new.blocks),
        hit_keys=b"".join(new.hit_keys),
        sampling=_sampling_to_wire(new.sampling),
        stopping=_stopping_to_wire(new.stopping),
        max_drafts=new.max_drafts,
    )


def _new_request_from_wire(wire: worker_pb2.NewRequest) -> NewRequest:
    return NewRequest(
        handle=wire.handle,
        tokens=tuple(to_ints(wire.tokens)),
        num_prompt=wire.num_prompt,
        num_computed=wire.num_computed,
        blocks=tuple(to_ints(wire.blocks)),
        hit_keys=tuple(to_keys(wire.hit_keys)),
        sampling=_sampling_from_wire(wire.sampling),
        stopping=_stopping_from_wire(wire.stopping),
        max_drafts=wire.max_drafts if wire.HasField("max_drafts") else None,
    )


def step_to_wire(step: Step) -> worker_pb2.Step:
    rows = step.rows
    return worker_pb2.Step(
        epoch=step.epoch,
        seq=step.seq,
        released=longs(step.released),
        sealed_blocks=ints([block for block, _ in step.sealed]),
        sealed_keys=b"".join(key for _, key in step.sealed),
        fresh=[_new_request_to_wire(new) for new in step.fresh],
        handles=longs([row.handle for row in rows]),
        num_new=ints([row.num_new for row in rows]),
        num_drafts=ints([row.num_drafts for row in rows]),
        block_counts=ints([len(row.new_blocks) for row in rows]),
        blocks=ints(flat(row.new_blocks for row in rows)),
    )


def step_from_wire(wire: worker_pb2.Step) -> Step:
    sealed, keys = to_ints(wire.sealed_blocks), to_keys(wire.sealed_keys)
    handles, num_new, num_drafts = to_longs(wire.handles), to_ints(wire.num_new), to_ints(wire.num_drafts)
    counts = to_ints(wire.block_counts)
    same_length(sealed, keys)
    same_length(handles, num_new, num_drafts, counts)
    return Step(
        epoch=wire.epoch,
        seq=wire.seq,
        released=tuple(to_longs(wire.released)),
        sealed=tuple(zip(sealed, keys, strict=True)),
        fresh=tuple(_new_request_from_wire(new) for new in wire.fresh),
        rows=tuple(
            Row(handle=a, num_new=b, num_drafts=c, new_blocks=d)
            for a, b, c, d in zip(handles, num_new, num_drafts, split(to_ints(wire.blocks), counts), strict=True)
        ),
    )


def outcome_to_wire(outcome: Outcome) -> worker_pb2.Outcome:
    return worker_pb2.Outcome(
        epoch=outcome.epoch,
        seq=outcome.seq,
        num_emitted=ints([len(tokens) for tokens in outcome.emitted]),
        tokens=ints(flat(outcome.emitted)),
        num_drafts=ints(outcome.num_drafts),
        num_final=ints(outcome.num_final),
        refused=longs(outcome.refused),
        failed=longs(outcome.failed),
    )


def outcome_from_wire(wire: worker_pb2.Outcome) -> Outcome:
    emitted, num_drafts, num_final = to_ints(wire.num_emitted), to_ints(wire.num_drafts), to_ints(wire.num_final)
    same_length(emitted, num_drafts, num_final)
    return Outcome(
        epoch=wire.epoch,
        seq=wire.seq,
        emitted=tuple(split(to_ints(wire.tokens), emitted)),
        num_drafts=tuple(num_drafts),
        num_final=tuple(num_final),
        refused=tuple(to_longs(wire.refused)),
        failed=tuple(to_longs(wire.failed)),
    )
