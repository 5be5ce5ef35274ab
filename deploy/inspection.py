"""An address at which `augury kv inspect` finds a KV service that is part of this process."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from augury import rpc
from augury.v1 import kvcache_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub
from deploy.embedded import STOP_GRACE_S

_SERVICE = kvcache_pb2.DESCRIPTOR.services_by_name["KVCache"].full_name
_log = logging.getLogger(__name__)


@asynccontextmanager
async def inspectable(kvcache: str, address: str) -> AsyncGenerator[str | None, None]:
    """The KV service at ``kvcache`` answers Inspect, and nothing else, at ``address`` too.

    Yields the address, its port 0 replaced; None where it cannot be bound, which is logged: nothing depends on it.
    """
    channel = rpc.connect(kvcache)
    try:
        listener = await rpc.listen(address, partial(_register, channel))
    except OSError as error:
        _log.info("what the KV cache holds cannot be inspected", extra={"reason": str(error)})
        listener = None
    try:
        yield listener.address if listener else None
    finally:
        if listener:
            await listener.stop(STOP_GRACE_S)
        await channel.close()


def _register(kvcache: grpc.aio.Channel, server: grpc.aio.Server) -> None:
    async def inspect(
        request: kvcache_pb2.InspectRequest, _: grpc.aio.ServicerContext[Any, Any]
    ) -> kvcache_pb2.Inspection:
        try:
            return await KVCacheStub(kvcache).Inspect(request)
        except grpc.aio.AioRpcError as error:
            raise rpc.to_domain(error) from None

    handler = grpc.unary_unary_rpc_method_handler(
        inspect,
        request_deserializer=kvcache_pb2.InspectRequest.FromString,
        response_serializer=kvcache_pb2.Inspection.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Inspect": handler}),))
