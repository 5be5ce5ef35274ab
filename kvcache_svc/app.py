"""Puts the KV service together from settings."""

from dataclasses import dataclass
from functools import partial

from augury import rpc
from augury.config import Settings
from augury.v1.kvcache_pb2_grpc import add_KVCacheServicer_to_server
from kvcache_svc.registry import Registry, open_registry
from kvcache_svc.service import KVCacheService

_LAST_STEP_S = 0.2
"""For answers under way. The streams of schedulers never end by themselves, and their requests stand still until the
successor is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheApp:
    listener: rpc.Listener
    registry: Registry

    @property
    def address(self) -> str:
        return self.listener.address

    async def drain(self) -> None:
        """Schedulers wait for its successor, which takes their leases over."""
        await self.listener.set_ready(False)

    async def stop(self, grace_s: float) -> None:
        await self.listener.stop(min(grace_s, _LAST_STEP_S))
        await self.registry.close()


async def start(settings: Settings) -> KvCacheApp:
    """Serve at ``kvcache.address``. Raises OSError where it cannot be bound."""
    registry = open_registry(settings.registry.url, settings.registry.key_prefix)
    register = partial(add_KVCacheServicer_to_server, KVCacheService(registry))
    return KvCacheApp(listener=await rpc.listen(settings.kvcache.address, register), registry=registry)
