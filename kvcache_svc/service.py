"""The gRPC face of the KV service: pools by worker, one coordinator each, the registry kept informed."""

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from augury import convert, limits
from augury.errors import AuguryError, FencedError, UnknownPoolError
from augury.types import Grant, PoolSpec, Proposal
from augury.v1 import kvcache_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheServicer
from kvcache_svc.core.coordinator import Coordinator, open_pool
from kvcache_svc.registry import Registry

Context = grpc.aio.ServicerContext[Any, Any]


class KVCacheService(KVCacheServicer):
    """Serves proposals from memory alone; the registry is written behind and read only when a pool is opened anew."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._pools: dict[str, Coordinator] = {}
        self._used_at: dict[str, float] = {}

    async def OpenPool(self, request: kvcache_pb2.OpenPoolRequest, context: Context) -> kvcache_pb2.OpenPoolReply:
        spec = convert.pool_from_wire(request)
        self._forget_idle()
        restored = {} if spec.pool in self._pools else await self._registry.load(spec)
        coordinator = open_pool(self._pools.get(spec.pool), spec, restored)
        self._pools[spec.pool] = coordinator
        self._used_at[spec.pool] = time.monotonic()
        self._record(spec, coordinator)
        pool = coordinator.pool
        return kvcache_pb2.OpenPoolReply(num_available=pool.num_available, num_cached=pool.num_cached)

    async def Step(
        self, request_iterator: AsyncIterator[kvcache_pb2.Proposal], context: Context
    ) -> AsyncIterator[kvcache_pb2.Grant]:
        async for request in request_iterator:
            try:
                yield convert.grant_to_wire(self._step(convert.proposal_from_wire(request)))
            except AuguryError as error:
                yield convert.refusal_to_wire(request, error)

    async def ClosePool(self, request: kvcache_pb2.ClosePoolRequest, context: Context) -> kvcache_pb2.ClosePoolReply:
        coordinator = self._pools.get(request.pool)
        if coordinator is not None:
            if request.epoch < coordinator.spec.epoch:
                raise FencedError(f"epoch {request.epoch}, but the pool is at {coordinator.spec.epoch}")
            del self._pools[request.pool], self._used_at[request.pool]
            self._registry.drop(request.pool)
        return kvcache_pb2.ClosePoolReply()

    async def Inspect(self, request: kvcache_pb2.InspectRequest, context: Context) -> kvcache_pb2.Inspection:
        pools = [_state(coordinator) for coordinator in self._pools.values()]
        return kvcache_pb2.Inspection(pools=pools, registry=self._registry.status)

    def _step(self, proposal: Proposal) -> Grant:
        coordinator = self._pools.get(proposal.pool)
        if coordinator is None:
            raise UnknownPoolError(f"pool {proposal.pool} is not open")
        self._used_at[proposal.pool] = time.monotonic()
        grant = coordinator.step(proposal)
        self._record(coordinator.spec, coordinator)
        return grant

    def _forget_idle(self) -> None:
        oldest = time.monotonic() - limits.POOL_IDLE_SECONDS
        for pool in [pool for pool, used_at in self._used_at.items() if used_at < oldest]:
            del self._pools[pool], self._used_at[pool]

    def _record(self, spec: PoolSpec, coordinator: Coordinator) -> None:
        sealed, gone = coordinator.pool.take_index_changes()
        if sealed or gone:
            self._registry.record(spec, sealed, gone)


def _state(coordinator: Coordinator) -> kvcache_pb2.PoolState:
    census = coordinator.pool.census()
    return kvcache_pb2.PoolState(
        pool=coordinator.spec.pool,
        epoch=coordinator.spec.epoch,
        num_blocks=coordinator.spec.num_blocks,
        num_free=census.free,
        num_open=census.open,
        num_sealed=census.sealed,
        num_cached=census.cached,
        num_leases=len(coordinator.leases.tables),
        query_blocks=coordinator.num_query_blocks,
        hit_blocks=coordinator.num_hit_blocks,
    )
