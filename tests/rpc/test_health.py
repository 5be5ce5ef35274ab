"""Every service answers the standard gRPC health checks that orchestrators ask."""

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from augury import rpc
from tests.rpc.serving import servicer, serving


async def state(listener: rpc.Listener, name: str) -> HealthCheckResponse.ServingStatus:
    channel = rpc.connect(listener.address)
    try:
        return (await HealthStub(channel).Check(HealthCheckRequest(service=name))).status
    finally:
        await channel.close()


async def test_a_service_that_drains_lives_but_is_not_ready(address: str) -> None:
    async with serving(address, servicer()) as (_, listener):
        assert await state(listener, "") == await state(listener, rpc.READY) == HealthCheckResponse.SERVING
        await listener.set_ready(False)
        assert await state(listener, "") == HealthCheckResponse.SERVING
        assert await state(listener, rpc.READY) == HealthCheckResponse.NOT_SERVING


async def test_an_unknown_name_is_not_found(address: str) -> None:
    async with serving(address, servicer()) as (_, listener):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await state(listener, "nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
