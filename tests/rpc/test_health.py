"""Every service answers the standard gRPC health checks that orchestrators ask."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from augury import rpc
from tests.rpc.serving import servicer, serving


@pytest.fixture(params=["tcp", "unix"])
def outside(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address that an orchestrator can reach."""
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/s"


async def state(listener: rpc.Listener, name: str) -> Any:
    channel = rpc.connect(listener.address)
    try:
        stub: Any = HealthStub(channel)
        return (await stub.Check(HealthCheckRequest(service=name))).status
    finally:
        await channel.close()


async def test_a_service_that_drains_lives_but_is_not_ready(outside: str) -> None:
    async with serving(outside, servicer()) as (_, listener):
        assert await state(listener, "") == await state(listener, rpc.READY) == HealthCheckResponse.SERVING
        await listener.set_ready(False)
        assert await state(listener, "") == HealthCheckResponse.SERVING
        assert await state(listener, rpc.READY) == HealthCheckResponse.NOT_SERVING


async def test_an_unknown_name_is_not_found(outside: str) -> None:
    async with serving(outside, servicer()) as (_, listener):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await state(listener, "nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
