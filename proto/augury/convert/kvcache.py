"""Messages between the scheduler and the KV service."""

from collections.abc import Sequence

from augury import errors
from augury.columns import (
    flat,
    grouped,
    ints,
    longs,
    ragged,
    ragged_counts,
    same_length,
    split,
    to_ints,
    to_keys,
    to_longs,
)
from augury.convert.common import group_from_wire, group_to_wire, miss_from_wire, miss_to_wire
from augury.types import Grant, Granted, Holding, PoolSpec, Proposal, Reserve, Seal
from augury.v1 import kvcache_pb2

Content = Sequence[tuple[int, bytes]]
"""Blocks and the keys they carry."""


def pool_to_wire(
    spec: PoolSpec, holdings: Sequence[Holding] = (), content: Content = ()
) -> kvcache_pb2.OpenPoolRequest:
    seals = [seal for holding in holdings for seal in holding.seals]
    tables = [table for holding in holdings for table in holding.blocks]
    return kvcache_pb2.OpenPoolRequest(
        pool=spec.pool,
        incarnation=spec.incarnation,
        fingerprint=spec.fingerprint,
        epoch=spec.epoch,
        num_blocks=spec.num_blocks,
        groups=map(group_to_wire, spec.groups),
        leases=longs([holding.lease for holding in holdings]),
        block_counts=ints(list(map(len, tables))),
        blocks=ints(flat(tables)),
        seal_counts=ints([len(holding.seals) for holding in holdings]),
        seal_groups=ints([seal.group for seal in seals]),
        seal_indices=ints([seal.index for seal in seals]),
        seal_keys=b"".join(seal.key for seal in seals),
        content_blocks=ints([block for block, _ in content]),
        content_keys=b"".join(key for _, key in content),
    )


def pool_from_wire(wire: kvcache_pb2.OpenPoolRequest) -> tuple[PoolSpec, list[Holding], list[tuple[int, bytes]]]:
    """The pool, the leases to take over and the content that the worker vouches for."""
    spec = PoolSpec(
        pool=wire.pool,
        incarnation=wire.incarnation,
        fingerprint=wire.fingerprint,
        epoch=wire.epoch,
        num_blocks=wire.num_blocks,
        groups=tuple(map(group_from_wire, wire.groups)),
    )
    blocks, keys = to_ints(wire.content_blocks), to_keys(wire.content_keys)
    same_length(blocks, keys)
    return spec, _holdings(wire), list(zip(blocks, keys, strict=True))


def _holdings(wire: kvcache_pb2.OpenPoolRequest) -> list[Holding]:
    leases, seal_counts = to_longs(wire.leases), to_ints(wire.seal_counts)
    groups, indices, keys = to_ints(wire.seal_groups), to_ints(wire.seal_indices), to_keys(wire.seal_keys)
    same_length(leases, seal_counts)
    same_length(groups, indices, keys)
    tables = grouped(split(to_ints(wire.blocks), to_ints(wire.block_counts)), len(leases))
    seals = split(list(zip(groups, indices, keys, strict=True)), seal_counts)
    return [
        Holding(
            lease=lease, blocks=table, seals=tuple(Seal(lease=lease, group=g, index=i, key=k) for g, i, k in sealed)
        )
        for lease, table, sealed in zip(leases, tables, seals, strict=True)
    ]


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
        seal_groups=ints([seal.group for seal in seals]),
        releases=longs(proposal.releases),
        reserve_leases=longs([reserve.lease for reserve in reserves]),
        reserve_slots=ints([reserve.num_slots for reserve in reserves]),
        reserve_ahead=ints([reserve.num_ahead for reserve in reserves]),
        reserve_computed=ints([reserve.num_computed for reserve in reserves]),
        reserve_key_counts=ints(ragged_counts([reserve.keys for reserve in reserves])),
        reserve_traces={index: reserve.trace for index, reserve in enumerate(reserves) if reserve.trace},
        reserve_keys=b"".join(key for reserve in reserves for keys in reserve.keys for key in keys),
    )


def proposal_from_wire(wire: kvcache_pb2.Proposal) -> Proposal:
    leases, indices, keys = to_longs(wire.seal_leases), to_ints(wire.seal_indices), to_keys(wire.seal_keys)
    groups = to_ints(wire.seal_groups)
    same_length(leases, groups, indices, keys)
    wanting, slots = to_longs(wire.reserve_leases), to_ints(wire.reserve_slots)
    ahead, computed = to_ints(wire.reserve_ahead), to_ints(wire.reserve_computed)
    same_length(wanting, slots, ahead, computed)
    lookups = grouped(split(to_keys(wire.reserve_keys), to_ints(wire.reserve_key_counts)), len(wanting))
    return Proposal(
        pool=wire.pool,
        epoch=wire.epoch,
        seq=wire.seq,
        forgotten=tuple(to_keys(wire.forgotten_keys)),
        seals=tuple(
            Seal(lease=a, group=b, index=c, key=d) for a, b, c, d in zip(leases, groups, indices, keys, strict=True)
        ),
        releases=tuple(to_longs(wire.releases)),
        reserves=tuple(
            Reserve(
                lease=a,
                num_slots=b,
                num_ahead=c,
                num_computed=d,
                keys=e if any(e) else (),
                trace=wire.reserve_traces.get(index),
            )
            for index, (a, b, c, d, e) in enumerate(zip(wanting, slots, ahead, computed, lookups, strict=True))
        ),
    )


def grant_to_wire(grant: Grant) -> kvcache_pb2.Grant:
    reserves = grant.reserves
    return kvcache_pb2.Grant(
        epoch=grant.epoch,
        seq=grant.seq,
        granted=bytes(granted is not None for granted in reserves),
        computed=ints([granted.num_computed if granted else 0 for granted in reserves]),
        sealed_counts=ints(ragged([granted.num_sealed if granted else () for granted in reserves])),
        misses=bytes(miss_to_wire(granted.miss if granted else None) for granted in reserves),
        block_counts=ints(ragged_counts([granted.blocks if granted else () for granted in reserves])),
        blocks=ints(flat(table for granted in reserves if granted for table in granted.blocks)),
        num_available=grant.num_available,
    )


def refusal_to_wire(proposal: kvcache_pb2.Proposal, error: errors.AuguryError) -> kvcache_pb2.Grant:
    """The answer to a proposal that was refused whole."""
    return kvcache_pb2.Grant(epoch=proposal.epoch, seq=proposal.seq, error_code=error.code, error_message=str(error))


def grant_from_wire(wire: kvcache_pb2.Grant) -> Grant:
    """Raises the AuguryError that the grant carries, if it is a refusal."""
    if wire.error_code:
        raise errors.from_code(wire.error_code, wire.error_message)
    computed = to_ints(wire.computed)
    same_length(wire.granted, computed, wire.misses)
    blocks = grouped(split(to_ints(wire.blocks), to_ints(wire.block_counts)), len(computed))
    sealed = grouped(to_ints(wire.sealed_counts), len(computed))
    return Grant(
        epoch=wire.epoch,
        seq=wire.seq,
        reserves=tuple(
            Granted(blocks=b, num_computed=c, num_sealed=d, miss=miss_from_wire(e)) if a else None
            for a, b, c, d, e in zip(wire.granted, blocks, computed, sealed, wire.misses, strict=True)
        ),
        num_available=wire.num_available,
    )
