"""What the KV service tells of a pool, on the wire."""

from collections.abc import Sequence

from augury.convert.common import group_to_wire, miss_to_wire
from augury.geometry import KvGroup
from augury.types import PoolSpec
from augury.v1 import kvcache_pb2
from kvcache_svc.core.inspection import GroupUsage, Histogram, Inspection


def pool_state(spec: PoolSpec, inspection: Inspection, num_restored: int, num_adopted: int) -> kvcache_pb2.PoolState:
    """``num_restored`` blocks' content and ``num_adopted`` leases were taken over when the pool was opened."""
    census, lookups = inspection.census, inspection.lookups
    return kvcache_pb2.PoolState(
        pool=spec.pool,
        epoch=spec.epoch,
        num_blocks=spec.num_blocks,
        num_free=census.free,
        num_open=census.open,
        num_sealed=census.sealed,
        num_cached=census.cached,
        num_leases=inspection.num_leases,
        num_lookups=lookups.num_lookups,
        query_tokens=lookups.query_tokens,
        hit_tokens=lookups.hit_tokens,
        misses={miss_to_wire(miss): count for miss, count in lookups.misses.items()},
        groups=_groups(spec.groups, inspection.groups),
        lifetime=_histogram(inspection.lifetime),
        idle=_histogram(inspection.idle),
        hottest=[
            kvcache_pb2.HotPrefix(key=prefix.key, num_tokens=prefix.num_tokens, num_hits=prefix.num_hits)
            for prefix in inspection.hottest
        ],
        num_restored=num_restored,
        num_adopted=num_adopted,
    )


def _groups(groups: Sequence[KvGroup], usages: Sequence[GroupUsage]) -> list[kvcache_pb2.GroupState]:
    return [
        kvcache_pb2.GroupState(
            group=group_to_wire(group), num_open=usage.open, num_sealed=usage.sealed, num_held=usage.held
        )
        for group, usage in zip(groups, usages, strict=True)
    ]


def _histogram(histogram: Histogram) -> kvcache_pb2.Histogram:
    return kvcache_pb2.Histogram(bounds=histogram.bounds, counts=histogram.counts, total=histogram.total)
