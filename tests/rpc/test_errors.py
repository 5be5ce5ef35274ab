"""Failures of the call itself become the nearest domain error."""

import grpc
import pytest

from augury import errors, rpc


def failed(code: grpc.StatusCode, *trailing: tuple[str, str]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), "why", None)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, "no_worker"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "server_overloaded"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "deadline_exceeded"),
        (grpc.StatusCode.UNIMPLEMENTED, "internal"),
    ],
)
def test_a_status_without_a_code_becomes_the_error_that_maps_to_it(status: grpc.StatusCode, code: str) -> None:
    error = rpc.to_domain(failed(status))
    assert (error.code, str(error)) == (code, f"{status.name}: why")


def test_the_code_of_the_other_side_wins_over_the_status() -> None:
    error = rpc.to_domain(failed(grpc.StatusCode.ABORTED, (rpc.CODE_KEY, "unknown_pool")))
    assert isinstance(error, errors.UnknownPoolError)
    assert str(error) == "why"


def test_a_code_of_a_newer_peer_is_internal() -> None:
    assert rpc.to_domain(failed(grpc.StatusCode.ABORTED, (rpc.CODE_KEY, "from_the_future"))).code == "internal"
