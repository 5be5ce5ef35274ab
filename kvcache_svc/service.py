"""The gRPC face of the KV service: pools by worker, one coordinator each, the registry kept informed."""

import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from augury import convert, limits
from augury.errors import AuguryError, FencedError, InvalidRequestError, UnknownPoolError
from augury.geometry import NULL_BLOCK
from augury.types import Grant, Holding, Proposal
from augury.v1 import kvcache_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheServicer
from kvcache_svc import spans
from kvcache_svc.core.coordinator import Coordinator, open_pool
from kvcache_svc.registry import Registry, reconcile
from kvcache_svc.state import pool_state

MAX_PREFIXES = 10_000
"""Hottest prefixes of a pool that can be asked for."""

Context = grpc.aio.ServicerContext[Any, Any]
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Pool:
    coordinator: Coordinator
    used_at: float
    num_restored: int = 0
    num_adopted: int = 0


class KVCacheService(KVCacheServicer):
    """Serves proposals from memory alone; the registry is written behind and read only when a pool is opened anew."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._pools: dict[str, _Pool] = {}

    async def OpenPool(self, request: kvcache_pb2.OpenPoolRequest, context: Context) -> kvcache_pb2.OpenPoolReply:
        """Where the pool is new here: its content as the registry and the worker's tags have it, leases taken over."""
        spec, holdings, tags = convert.pool_from_wire(request)
        self._forget_idle()
        registered = await self._registry.load(spec)
        content = reconcile(registered, tags)
        known, now = self._pools.get(spec.pool), time.monotonic()
        try:
            coordinator = open_pool(known.coordinator if known else None, spec, content, holdings, now)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None
        if known is not None and coordinator is known.coordinator:
            known.used_at = now
            self._registry.record(spec, *coordinator.pool.take_index_changes())
        else:
            self._pools[spec.pool] = _Pool(coordinator=coordinator, used_at=now)
            self._take_over({*registered, *content}, holdings, self._pools[spec.pool])
        self._registry.watch(spec, lambda: _held_blocks(coordinator))
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
        pool = self._pools.get(request.pool)
        if pool is not None:
            if request.epoch < pool.coordinator.spec.epoch:
                raise FencedError(f"epoch {request.epoch}, but the pool is at {pool.coordinator.spec.epoch}")
            del self._pools[request.pool]
            self._registry.drop(request.pool)
        return kvcache_pb2.ClosePoolReply()

    async def Inspect(self, request: kvcache_pb2.InspectRequest, context: Context) -> kvcache_pb2.Inspection:
        if request.num_prefixes > MAX_PREFIXES:
            raise InvalidRequestError(f"at most {MAX_PREFIXES} prefixes can be asked for", "num_prefixes")
        pools = [_state(pool, request.num_prefixes) for pool in self._pools.values()]
        return kvcache_pb2.Inspection(pools=pools, registry=self._registry.status)

    async def Status(self, request: kvcache_pb2.StatusRequest, context: Context) -> kvcache_pb2.StatusReply:
        return kvcache_pb2.StatusReply(registry=self._registry.status)

    def _step(self, proposal: Proposal) -> Grant:
        pool = self._pools.get(proposal.pool)
        if pool is None:
            raise UnknownPoolError(f"pool {proposal.pool} is not open")
        pool.used_at, began_ns = time.monotonic(), time.time_ns()
        grant = pool.coordinator.step(proposal, pool.used_at)
        spans.record(proposal, grant, began_ns)
        sealed, gone = pool.coordinator.pool.take_index_changes()
        if sealed or gone:
            self._registry.record(pool.coordinator.spec, sealed, gone)
        return grant

    def _forget_idle(self) -> None:
        oldest = time.monotonic() - limits.POOL_IDLE_SECONDS
        for name in [name for name, pool in self._pools.items() if pool.used_at < oldest]:
            del self._pools[name]
            self._registry.rest(name)

    def _take_over(self, keys: Iterable[bytes], holdings: Sequence[Holding], pool: _Pool) -> None:
        """The registry learns what became of all ``keys`` that content or a lease brought into a new pool."""
        coordinator = pool.coordinator
        coordinator.pool.take_index_changes()
        every = {*keys, *(seal.key for holding in holdings for seal in holding.seals)}
        found = {key: coordinator.pool.find(key) for key in every}
        sealed = [(key, block) for key, block in found.items() if block is not None]
        self._registry.record(coordinator.spec, sealed, [key for key, block in found.items() if block is None])
        pool.num_restored, pool.num_adopted = len(sealed), len(holdings)
        extra = {"pool": coordinator.spec.pool, "epoch": coordinator.spec.epoch}
        _log.info("pool opened", extra={**extra, "restored": pool.num_restored, "adopted": pool.num_adopted})


def _state(pool: _Pool, num_prefixes: int) -> kvcache_pb2.PoolState:
    coordinator = pool.coordinator
    return pool_state(coordinator.spec, coordinator.inspect(num_prefixes), pool.num_restored, pool.num_adopted)


def _held_blocks(coordinator: Coordinator) -> dict[int, int]:
    """Real blocks of each lease, over all groups."""
    return {
        lease: sum(len(table) - table.count(NULL_BLOCK) for table in tables)
        for lease, tables in coordinator.leases.tables.items()
    }
