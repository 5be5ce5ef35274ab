"""A scheduler's calls to a KV service that runs in this process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import grpc

from augury import convert, rpc
from augury.geometry import KvGroup
from augury.types import Grant, Granted, Holding, PoolSpec, Proposal, Reserve, Seal
from augury.v1 import kvcache_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub, add_KVCacheServicer_to_server
from kvcache_svc.registry import open_registry
from kvcache_svc.service import KVCacheService

SPEC = PoolSpec(
    pool="worker-0", incarnation="life", fingerprint="model", epoch=5, num_blocks=12, groups=(KvGroup(block_size=4),)
)


class Client:
    """A scheduler's calls for one pool."""

    def __init__(self, stub: Any, address: str) -> None:
        self.address = address
        self._stub = stub
        self._seq = 0

    async def open(
        self, spec: PoolSpec = SPEC, holdings: Sequence[Holding] = (), tags: Sequence[tuple[int, bytes]] = ()
    ) -> kvcache_pb2.OpenPoolReply:
        """Raises the service's AuguryError."""
        self._seq = 0
        try:
            return cast(
                kvcache_pb2.OpenPoolReply, await self._stub.OpenPool(convert.pool_to_wire(spec, holdings, tags))
            )
        except grpc.aio.AioRpcError as error:
            raise rpc.to_domain(error) from None

    async def step(
        self,
        *reserves: Reserve,
        seals: Sequence[Seal] = (),
        releases: Sequence[int] = (),
        epoch: int = SPEC.epoch,
    ) -> Grant:
        self._seq += 1
        proposal = Proposal(
            pool=SPEC.pool,
            epoch=epoch,
            seq=self._seq,
            seals=tuple(seals),
            releases=tuple(releases),
            reserves=reserves,
        )
        call = self._stub.Step()
        await call.write(convert.proposal_to_wire(proposal))
        grant = await call.read()
        call.cancel()
        return convert.grant_from_wire(grant)

    async def state(self, num_prefixes: int = 0) -> kvcache_pb2.PoolState:
        (pool,) = (await self._stub.Inspect(kvcache_pb2.InspectRequest(num_prefixes=num_prefixes))).pools
        return cast(kvcache_pb2.PoolState, pool)

    async def until_registry(self, status: str) -> None:
        """As both Status and Inspect tell it."""
        async with asyncio.timeout(20):
            while (await self._stub.Status(kvcache_pb2.StatusRequest())).registry != status:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await self._stub.Inspect(kvcache_pb2.InspectRequest())).registry == status

    async def hit(self, *keys: bytes, epoch: int = SPEC.epoch) -> int:
        """Tokens found for a prompt of these blocks and a token more. The lease is given back."""
        wish = Reserve(lease=99, num_slots=4 * len(keys) + 1, num_ahead=1, keys=(keys,))
        (granted,) = (await self.step(wish, epoch=epoch)).reserves
        assert granted is not None
        await self.step(releases=[99], epoch=epoch)
        return granted.num_computed

    async def fill(self, lease: int, *keys: bytes) -> Granted:
        """A lease whose first blocks are sealed under ``keys`` and whose last one is open."""
        (granted,) = (await self.step(Reserve(lease=lease, num_slots=4 * len(keys) + 1, num_ahead=1))).reserves
        assert granted is not None
        await self.step(seals=[Seal(lease=lease, index=index, key=each) for index, each in enumerate(keys)])
        return granted


@asynccontextmanager
async def serving(url: str | None, address: str = "local:kv") -> AsyncIterator[Client]:
    """One life of the KV service with the registry at ``url``."""
    registry = open_registry(url, "augury")
    listener = await rpc.listen(address, partial(add_KVCacheServicer_to_server, KVCacheService(registry)))
    channel = rpc.connect(listener.address)
    try:
        yield Client(KVCacheStub(channel), listener.address)
    finally:
        await channel.close()
        await listener.stop(0)
        await registry.close()
