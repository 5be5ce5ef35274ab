"""Messages between the scheduler and a worker."""

from collections.abc import Sequence

from augury.columns import (
    flat,
    grouped,
    ints,
    longs,
    ragged_counts,
    same_length,
    split,
    to_ints,
    to_keys,
    to_longs,
)
from augury.convert.common import (
    input_from_wire,
    input_to_wire,
    sampling_from_wire,
    sampling_to_wire,
    stopping_from_wire,
    stopping_to_wire,
)
from augury.types import NewRequest, Outcome, Row, Step
from augury.v1 import worker_pb2


def _new_request_to_wire(new: NewRequest) -> worker_pb2.NewRequest:
    return worker_pb2.NewRequest(
        handle=new.handle,
        tokens=ints(new.tokens),
        num_prompt=new.num_prompt,
        num_computed=new.num_computed,
        block_counts=ints(list(map(len, new.blocks))),
        blocks=ints(flat(new.blocks)),
        hit_blocks=ints([block for block, _ in new.hits]),
        hit_keys=b"".join(key for _, key in new.hits),
        sampling=sampling_to_wire(new.sampling),
        stopping=stopping_to_wire(new.stopping),
        max_drafts=new.max_drafts,
        inputs=map(input_to_wire, new.inputs),
        trace=new.trace,
    )


def _new_request_from_wire(wire: worker_pb2.NewRequest) -> NewRequest:
    hits, keys = to_ints(wire.hit_blocks), to_keys(wire.hit_keys)
    same_length(hits, keys)
    return NewRequest(
        handle=wire.handle,
        tokens=tuple(to_ints(wire.tokens)),
        num_prompt=wire.num_prompt,
        num_computed=wire.num_computed,
        blocks=tuple(split(to_ints(wire.blocks), to_ints(wire.block_counts))),
        hits=tuple(zip(hits, keys, strict=True)),
        sampling=sampling_from_wire(wire.sampling),
        stopping=stopping_from_wire(wire.stopping),
        max_drafts=wire.max_drafts if wire.HasField("max_drafts") else None,
        inputs=tuple(map(input_from_wire, wire.inputs)),
        trace=wire.trace if wire.HasField("trace") else None,
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
        block_counts=ints(ragged_counts([row.new_blocks for row in rows])),
        blocks=ints(flat(table for row in rows for table in row.new_blocks)),
        encoded_counts=ints([len(row.encoded) for row in rows]),
        encoded=ints(flat(row.encoded for row in rows)),
        discarded=step.discarded,
    )


def step_from_wire(wire: worker_pb2.Step) -> Step:
    sealed, keys = to_ints(wire.sealed_blocks), to_keys(wire.sealed_keys)
    handles, num_new, num_drafts = to_longs(wire.handles), to_ints(wire.num_new), to_ints(wire.num_drafts)
    same_length(sealed, keys)
    same_length(handles, num_new, num_drafts)
    blocks = grouped(split(to_ints(wire.blocks), to_ints(wire.block_counts)), len(handles))
    encoded_counts = to_ints(wire.encoded_counts)
    same_length(handles, encoded_counts)
    encoded = split(to_ints(wire.encoded), encoded_counts)
    return Step(
        epoch=wire.epoch,
        seq=wire.seq,
        released=tuple(to_longs(wire.released)),
        sealed=tuple(zip(sealed, keys, strict=True)),
        fresh=tuple(_new_request_from_wire(new) for new in wire.fresh),
        rows=tuple(
            Row(handle=a, num_new=b, num_drafts=c, new_blocks=d if any(d) else (), encoded=e)
            for a, b, c, d, e in zip(handles, num_new, num_drafts, blocks, encoded, strict=True)
        ),
        discarded=tuple(wire.discarded),
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


def tags_to_wire(tags: Sequence[tuple[int, bytes]]) -> worker_pb2.TagsReply:
    """Sealed blocks and their keys."""
    return worker_pb2.TagsReply(blocks=ints([block for block, _ in tags]), keys=b"".join(key for _, key in tags))


def tags_from_wire(wire: worker_pb2.TagsReply) -> list[tuple[int, bytes]]:
    blocks, keys = to_ints(wire.blocks), to_keys(wire.keys)
    same_length(blocks, keys)
    return list(zip(blocks, keys, strict=True))
