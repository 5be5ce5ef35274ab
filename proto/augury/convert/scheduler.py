"""Messages to and from the scheduler: requests of gateways, deltas, descriptions, workers that register."""

from collections.abc import Sequence

from augury.columns import flat, ints, longs, same_length, split, to_ints, to_longs
from augury.convert.common import (
    group_from_wire,
    group_to_wire,
    input_from_wire,
    input_to_wire,
    miss_from_wire,
    miss_to_wire,
    sampling_from_wire,
    sampling_to_wire,
    stopping_from_wire,
    stopping_to_wire,
)
from augury.errors import InvalidRequestError
from augury.types import Delta, Description, Ended, EndReason, Generation, WorkerInfo, WorkerStatus
from augury.v1 import common_pb2, scheduler_pb2

_REASONS = {
    EndReason.STOP: common_pb2.END_REASON_STOP,
    EndReason.LENGTH: common_pb2.END_REASON_LENGTH,
    EndReason.CANCELLED: common_pb2.END_REASON_CANCELLED,
    EndReason.FAILED: common_pb2.END_REASON_FAILED,
}
_CLIENT_BYTES = range(16, 33)
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}


def submit_to_wire(ticket: int, generation: Generation) -> scheduler_pb2.Submit:
    return scheduler_pb2.Submit(
        ticket=ticket,
        request_id=generation.request_id,
        prompt=ints(generation.prompt),
        emitted=ints(generation.emitted),
        sampling=sampling_to_wire(generation.sampling),
        stopping=stopping_to_wire(generation.stopping),
        priority=generation.priority,
        cache_salt=generation.cache_salt,
        max_drafts=generation.max_drafts,
        inputs=map(input_to_wire, generation.inputs),
        timeout_ms=None if generation.timeout_s is None else round(generation.timeout_s * 1000),
        trace=generation.trace,
        client=generation.client,
    )


def submit_from_wire(wire: scheduler_pb2.Submit) -> Generation:
    return Generation(
        request_id=wire.request_id,
        prompt=tuple(to_ints(wire.prompt)),
        emitted=tuple(to_ints(wire.emitted)),
        sampling=sampling_from_wire(wire.sampling),
        stopping=stopping_from_wire(wire.stopping),
        priority=wire.priority,
        cache_salt=wire.cache_salt,
        max_drafts=wire.max_drafts if wire.HasField("max_drafts") else None,
        inputs=tuple(map(input_from_wire, wire.inputs)),
        timeout_s=wire.timeout_ms / 1000 if wire.HasField("timeout_ms") else None,
        trace=wire.trace if wire.HasField("trace") else None,
        client=_client_from_wire(wire),
    )


def _client_from_wire(wire: scheduler_pb2.Submit) -> bytes | None:
    if not wire.HasField("client"):
        return None
    if len(wire.client) not in _CLIENT_BYTES:
        raise InvalidRequestError(f"a client of {len(wire.client)} bytes", "client")
    return wire.client


def deltas_to_wire(deltas: Sequence[Delta]) -> scheduler_pb2.ServerMessage:
    """Tokens of all ``deltas`` as columns; a ticket may come twice, its tokens then follow one another."""
    return scheduler_pb2.ServerMessage(
        tickets=longs([delta.ticket for delta in deltas]),
        counts=ints([len(delta.tokens) for delta in deltas]),
        tokens=ints(flat(delta.tokens for delta in deltas)),
        cached=ints([delta.num_cached for delta in deltas]),
        drafts=ints([delta.num_drafts for delta in deltas]),
        accepted=ints([delta.num_accepted for delta in deltas]),
        waited_ms=ints([delta.waited_ms for delta in deltas]),
        ended=[_ended_to_wire(delta.ticket, delta.ended) for delta in deltas if delta.ended],
    )


def deltas_from_wire(wire: scheduler_pb2.ServerMessage) -> list[Delta]:
    tickets, counts = to_longs(wire.tickets), to_ints(wire.counts)
    numbers = to_ints(wire.cached), to_ints(wire.drafts), to_ints(wire.accepted), to_ints(wire.waited_ms)
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
            waited_ms=waited_ms,
            ended=ended.get(ticket) if last[ticket] == index else None,
        )
        for index, (ticket, part, num_cached, num_drafts, num_accepted, waited_ms) in enumerate(
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


_COLUMNS = ("accepted_at", "accepted_lengths", "iteration_tokens")
_STATUS_FIELDS = [name for name in WorkerStatus.__slots__ if name not in (*_COLUMNS, "misses")]


def description_to_wire(description: Description) -> scheduler_pb2.Description:
    return scheduler_pb2.Description(
        model=description.model or "",
        max_model_len=description.max_model_len or 0,
        vocab_size=description.vocab_size or 0,
        num_parked=description.num_parked,
        flaws=description.flaws,
        workers=map(_status_to_wire, description.workers),
    )


def description_from_wire(wire: scheduler_pb2.Description) -> Description:
    return Description(
        model=wire.model or None,
        max_model_len=wire.max_model_len or None,
        vocab_size=wire.vocab_size or None,
        num_parked=wire.num_parked,
        flaws=tuple(wire.flaws),
        workers=tuple(map(_status_from_wire, wire.workers)),
    )


def _status_to_wire(worker: WorkerStatus) -> scheduler_pb2.WorkerState:
    return scheduler_pb2.WorkerState(
        misses={miss_to_wire(miss): count for miss, count in worker.misses.items()},
        **{name: getattr(worker, name) for name in (*_STATUS_FIELDS, *_COLUMNS)},
    )


def _status_from_wire(wire: scheduler_pb2.WorkerState) -> WorkerStatus:
    misses = {miss_from_wire(number): count for number, count in wire.misses.items()}
    return WorkerStatus(
        accepted_at=tuple(wire.accepted_at),
        accepted_lengths=tuple(wire.accepted_lengths),
        iteration_tokens=tuple(wire.iteration_tokens),
        misses={miss: count for miss, count in misses.items() if miss is not None},
        **{name: getattr(wire, name) for name in _STATUS_FIELDS},
    )


# --- worker registration ---

_INFO_FIELDS = [name for name in WorkerInfo.__slots__ if name != "groups"]


def hello_to_wire(info: WorkerInfo) -> scheduler_pb2.WorkerHello:
    return scheduler_pb2.WorkerHello(
        groups=map(group_to_wire, info.groups), **{name: getattr(info, name) for name in _INFO_FIELDS}
    )


def hello_from_wire(wire: scheduler_pb2.WorkerHello) -> WorkerInfo:
    return WorkerInfo(
        groups=tuple(map(group_from_wire, wire.groups)), **{name: getattr(wire, name) for name in _INFO_FIELDS}
    )
