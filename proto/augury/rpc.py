"""How services reach one another: channels, listeners, and errors that keep their code across a call."""

from __future__ import annotations

import errno
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import grpc
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from augury import errors, limits
from augury.errors import AuguryError, InternalError
from augury.exchange import Fault
from augury.local import Handler, LocalChannel, LocalServer

CODE_KEY = "augury-code"
"""Trailing metadata that carries AuguryError.code."""

READY = "ready"
"""The name under which the standard health service tells whether this one takes new work; "" tells that it lives."""

_LOCAL = "local:"
_CONNECT_TIMEOUT_MS = 2_000
_PING_MS = 3_000
_PING_TIMEOUT_MS = 3_000
_BY_STATUS = {mapping.grpc: code for code, mapping in errors.TABLE.items()}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A server that takes calls at ``address``, until it is stopped. But for a local one, it answers health checks."""

    address: str
    _server: grpc.aio.Server
    _health: health.aio.HealthServicer

    async def set_ready(self, ready: bool) -> None:
        """What a health check for READY is told."""
        states = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        await self._health.set(READY, states[0] if ready else states[1])

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; those still open after ``grace_s`` seconds break."""
        await self._server.stop(grace_s)


def connect(target: str, fault: Fault | None = None) -> grpc.aio.Channel:
    """A channel to ``local:name``, ``unix:/path`` or ``host:port``. It connects when used, and again when it breaks.

    ``fault`` sees every message of a local channel (see augury.exchange). Must be called inside the event loop.
    """
    if target.startswith(_LOCAL):
        return cast(grpc.aio.Channel, LocalChannel(target.removeprefix(_LOCAL), fault))
    assert fault is None, "faults are for local channels"
    first, longest = limits.CONNECT_RETRY_SECONDS
    options = [
        *_common_options(),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", round(first * 1000)),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", round(longest * 1000)),
    ]
    return grpc.aio.insecure_channel(target, options=options)


async def listen(address: str, *register: Callable[[grpc.aio.Server], None]) -> Listener:
    """Serve at ``local:name``, ``unix:/path`` or ``host:port``, where port 0 picks a free one.

    Each of ``register`` adds a service, as ``partial(add_KVCacheServicer_to_server, servicer)``.
    Raises OSError where the address cannot be bound.
    """
    local = address.startswith(_LOCAL)
    interceptors, checks = [_ErrorInterceptor()], health.aio.HealthServicer()
    if local:
        server = cast(grpc.aio.Server, LocalServer(address.removeprefix(_LOCAL), interceptors))
    else:
        server = grpc.aio.server(interceptors=interceptors, options=_server_options())
        add_HealthServicer_to_server(checks, server)
    for add in register:
        add(server)
    bound = address if local else _bind(server, address)
    await server.start()
    listener = Listener(address=bound, _server=server, _health=checks)
    await listener.set_ready(True)
    return listener


def to_domain(error: grpc.aio.AioRpcError) -> AuguryError:
    """The error that the other side raised; for a failure of the call itself, the one closest to its status."""
    details = error.details() or ""
    code = (error.trailing_metadata() or {}).get(CODE_KEY)
    if code is not None:
        return errors.from_code(str(code), details)
    status = error.code().name
    return errors.from_code(_BY_STATUS.get(status, InternalError.code), f"{status}: {details}")


def _bind(server: grpc.aio.Server, address: str) -> str:
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(errno.EADDRNOTAVAIL, f"cannot listen at {address}") from error
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _common_options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", limits.MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        # The one that gRPC 1.85 heeds: it never arms the timer of the other, and this one's default is a minute.
        ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _server_options() -> list[tuple[str, int]]:
    # Half a client's ping interval, so that a ping that comes early is no offence.
    return [
        *_common_options(),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS // 2),
        ("grpc.so_reuseport", 0),
    ]


class _ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call whose handler raises with the status, the message and the code of the error."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        guarded: Handler = make(
            _guard(getattr(handler, kind)),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return guarded


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"


def _guard(behaviour: Callable[..., Any]) -> Callable[..., Any]:
    """The same coroutine or async generator function, that aborts where the original raises.

    Anything else is returned as it is: a generated method that the servicer does not implement.
    """

    async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001
            await _abort(context, error)

    async def run(request: Any, context: Any) -> Any:
        try:
            return await behaviour(request, context)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001
            await _abort(context, error)

    if inspect.isasyncgenfunction(behaviour):
        return generate
    return run if inspect.iscoroutinefunction(behaviour) else behaviour


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    if not isinstance(error, AuguryError):
        _log.error("a handler failed", exc_info=error)
        error = InternalError(f"internal error: {type(error).__name__}")
    message = str(error)[: limits.MAX_ERROR_CHARS]
    trailing = (*context.trailing_metadata(), (CODE_KEY, error.code))
    await context.abort(grpc.StatusCode[errors.TABLE[error.code].grpc], message, trailing)
