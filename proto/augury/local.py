"""Calls between services of one process: the part of grpc.aio that generated stubs and servicers use, without sockets.

Messages are serialised both ways, so a servicer sees what it would see over a network. There are no threads and no
clock but the event loop's, so a loop with virtual time runs the real servicers. Names are known per event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias
from weakref import WeakKeyDictionary

import grpc

from augury.exchange import Direction, Exchange, Fault, Metadatum, Status

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs alone


# --- client ---


class _Call:
    """What grpc.aio.Call offers; unary and streaming calls add to it."""

    def __init__(self, exchange: Exchange, serializer: Serializer, deserializer: Deserializer) -> None:
        self._exchange = exchange
        self._serialize = serializer
        self._deserialize = deserializer

    def cancel(self) -> bool:
        details = "Locally cancelled by application!"
        return self._exchange.abandon(Status(code=grpc.StatusCode.CANCELLED, details=details, local=True))

    def done(self) -> bool:
        return self._exchange.status.done()

    def cancelled(self) -> bool:
        return self.done() and self._exchange.status.result().code is grpc.StatusCode.CANCELLED

    def add_done_callback(self, callback: Callable[[Self], None]) -> None:
        self._exchange.status.add_done_callback(lambda _: callback(self))

    def time_remaining(self) -> float | None:
        return self._exchange.time_remaining()

    async def code(self) -> grpc.StatusCode:
        return (await self._status()).code

    async def details(self) -> str:
        return (await self._status()).details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await self._status()).trailing)

    async def _status(self) -> Status:
        return await asyncio.shield(self._exchange.status)

    async def _raise_for_status(self) -> None:
        status = await self._status()
        if status.local:
            raise asyncio.CancelledError
        if status.code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                status.code,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(*status.trailing),
                details=status.details,
                debug_error_string=None,
            )


class _UnaryCall(_Call):
    """An awaitable call; it starts when it is made and may be awaited more than once."""

    def start(self, request: object) -> Self:
        self._response = asyncio.get_running_loop().create_task(self._invoke(self._serialize(request)))
        return self

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        try:
            raw = await self._response
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._raise_for_status()
        assert raw is not None, "a unary handler that ended well has answered"
        return self._deserialize(raw)

    async def _invoke(self, raw: bytes) -> bytes | None:
        await self._exchange.send(Direction.REQUEST, raw)
        return await self._exchange.responses.get()


class _StreamCall(_Call):
    """A call with messages both ways, by read and write, or by iteration over it and a request iterator."""

    def start(self, requests: AsyncIterable[Any] | None) -> Self:
        if requests is not None:
            feeder = asyncio.get_running_loop().create_task(self._feed(requests))
            self._exchange.status.add_done_callback(lambda _: feeder.cancel())
        return self

    async def read(self) -> Any:
        try:
            raw = await self._exchange.responses.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if raw is not None:
            return self._deserialize(raw)
        await self._raise_for_status()
        return grpc.aio.EOF

    async def write(self, request: object) -> None:
        """Raises AioRpcError or, as grpc.aio does for a call known to be over, asyncio.InvalidStateError."""
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        try:
            sent = await self._exchange.send(Direction.REQUEST, self._serialize(request))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if not sent and self.done():
            await self._raise_for_status()
        if not sent:
            raise asyncio.InvalidStateError("RPC is half closed after calling done_writing.")

    async def done_writing(self) -> None:
        self._exchange.requests.end()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def _feed(self, requests: AsyncIterable[Any]) -> None:
        """Write what ``requests`` yields; if it fails, the call is cancelled."""
        try:
            async for request in requests:
                await self.write(request)
            await self.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        finally:
            if not self._exchange.requests.ended:
                self.cancel()


class LocalChannel:
    """A channel to whichever server of this event loop is called ``name`` at the time of a call."""

    def __init__(self, name: str, fault: Fault | None = None) -> None:
        self._name = name
        self._fault = fault
        self._open: set[Exchange] = set()

    def unary_unary(
        self, method: str, request_serializer: Serializer, response_deserializer: Deserializer, **_: object
    ) -> Callable[..., _UnaryCall]:
        def invoke(request: object, *, timeout: float | None = None, metadata: Sequence[Metadatum] = ()) -> _UnaryCall:
            exchange = self._connect(method, timeout, metadata, streaming=False)
            return _UnaryCall(exchange, request_serializer, response_deserializer).start(request)

        return invoke

    def stream_stream(
        self, method: str, request_serializer: Serializer, response_deserializer: Deserializer, **_: object
    ) -> Callable[..., _StreamCall]:
        def invoke(
            request_iterator: AsyncIterable[Any] | None = None,
            timeout: float | None = None,
            metadata: Sequence[Metadatum] = (),
        ) -> _StreamCall:
            exchange = self._connect(method, timeout, metadata, streaming=True)
            return _StreamCall(exchange, request_serializer, response_deserializer).start(request_iterator)

        return invoke

    async def close(self, grace: float | None = None) -> None:
        """Cancel the calls that are still open ``grace`` seconds later."""
        if grace and self._open:
            await asyncio.wait([exchange.status for exchange in self._open], timeout=grace)
        for exchange in list(self._open):
            exchange.abandon(Status(code=grpc.StatusCode.CANCELLED, details="Channel closed.", local=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _connect(
        self, method: str, timeout: float | None, metadata: Sequence[Metadatum], *, streaming: bool
    ) -> Exchange:
        exchange = Exchange(method, tuple(metadata), streaming=streaming, timeout=timeout, fault=self._fault)
        self._open.add(exchange)
        exchange.status.add_done_callback(lambda _: self._open.discard(exchange))
        server = _servers().get(self._name)
        if server is None:
            details = f"no server listens at local:{self._name}"
            exchange.abandon(Status(code=grpc.StatusCode.UNAVAILABLE, details=details))
        else:
            server.accept(exchange)
        return exchange


# --- server ---


class _Context:
    """What grpc.aio.ServicerContext offers to a handler."""

    def __init__(self, exchange: Exchange, handler: Handler) -> None:
        assert handler.request_deserializer is not None
        assert handler.response_serializer is not None
        self._exchange = exchange
        self._deserialize: Deserializer = handler.request_deserializer
        self._serialize: Serializer = handler.response_serializer
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailing: tuple[Metadatum, ...] = ()
        self.callbacks: list[Callable[[_Context], None]] = []

    async def read(self) -> Any:
        raw = await self._exchange.requests.get()
        return grpc.aio.EOF if raw is None else self._deserialize(raw)

    async def write(self, message: object) -> None:
        raw = self._serialize(message)
        if self.done() or not await self._exchange.send(Direction.RESPONSE, raw):
            raise grpc.aio.UsageError("RPC already finished.")

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[Metadatum, ...] = ()
    ) -> NoReturn:
        trailing = trailing_metadata or self._trailing
        self._exchange.finish(Status(code=code, details=details or self._details, trailing=trailing))
        raise grpc.aio.AbortError("Locally aborted.")

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def set_details(self, details: str) -> None:
        self._details = details

    def details(self) -> str:
        return self._details

    def set_trailing_metadata(self, trailing_metadata: Iterable[Metadatum]) -> None:
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> tuple[Metadatum, ...]:
        return self._trailing

    def invocation_metadata(self) -> tuple[Metadatum, ...]:
        return self._exchange.metadata

    def time_remaining(self) -> float | None:
        return self._exchange.time_remaining()

    def add_done_callback(self, callback: Callable[[_Context], None]) -> None:
        self.callbacks.append(callback)

    def done(self) -> bool:
        return self._exchange.status.done()

    def cancelled(self) -> bool:
        return self._code is grpc.StatusCode.CANCELLED

    def peer(self) -> str:
        return "local:"

    def outcome(self) -> Status:
        """How the call ends once its handler has returned."""
        return Status(code=self._code, details=self._details, trailing=self._trailing)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class _CallDetails(NamedTuple):
    """What grpc.HandlerCallDetails tells an interceptor."""

    method: str
    invocation_metadata: tuple[Metadatum, ...]


class LocalServer:
    """A server that LocalChannel reaches by ``name``, from ``start`` to ``stop``."""

    def __init__(self, name: str, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()) -> None:
        self._name = name
        self._interceptors = interceptors
        self._methods: dict[str, Handler] = {}
        self._calls: dict[Exchange, asyncio.Task[None]] = {}

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        self._methods.update({f"/{service_name}/{name}": handler for name, handler in method_handlers.items()})

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Nothing to do: generated code also registers each of these methods by name."""

    async def start(self) -> None:
        """Raises OSError where the name is taken."""
        if _servers().setdefault(self._name, self) is not self:
            raise OSError(errno.EADDRINUSE, f"local:{self._name} is taken")

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; those still open ``grace`` seconds later break with UNAVAILABLE."""
        if _servers().get(self._name) is self:
            del _servers()[self._name]
        calls = dict(self._calls)
        if calls and grace:
            await asyncio.wait(calls.values(), timeout=grace)
        for exchange in calls:
            exchange.abandon(Status(code=grpc.StatusCode.UNAVAILABLE, details="the server stopped"))
        if calls:
            await asyncio.wait(calls.values())

    def accept(self, exchange: Exchange) -> None:
        """Run the handler of a new call until it returns or the call is abandoned."""
        task = asyncio.get_running_loop().create_task(self._serve(exchange))
        self._calls[exchange] = task
        task.add_done_callback(lambda _: self._calls.pop(exchange))
        exchange.status.add_done_callback(lambda _: exchange.broken and task.cancel())

    async def _serve(self, exchange: Exchange) -> None:
        handler = await self._resolve(_CallDetails(exchange.method, exchange.metadata))
        if handler is None or not _is_async(behaviour := _behaviour(handler)):
            exchange.abandon(Status(code=grpc.StatusCode.UNIMPLEMENTED, details="Method not found!"))
            return
        context = _Context(exchange, handler)
        status = Status(code=grpc.StatusCode.UNKNOWN, details="the handler failed")
        try:
            with contextlib.suppress(grpc.aio.BaseError):
                await _respond(handler, behaviour, context)
                status = context.outcome()
        finally:
            exchange.finish(status)
            for callback in context.callbacks:
                callback(context)

    async def _resolve(self, details: _CallDetails) -> Handler | None:
        interceptors = iter(self._interceptors)

        async def following(details: Any) -> Handler | None:
            interceptor = next(interceptors, None)
            if interceptor is None:
                return self._methods.get(details.method)
            return await interceptor.intercept_service(following, details)

        return await following(details)


def _behaviour(handler: Handler) -> Callable[..., Any]:
    """The servicer's method: the one of four fields that is set."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)


def _is_async(behaviour: Callable[..., Any]) -> bool:
    """False for the method of a generated base class that the servicer does not implement."""
    return inspect.isasyncgenfunction(behaviour) or inspect.iscoroutinefunction(behaviour)


async def _respond(handler: Handler, behaviour: Callable[..., Any], context: _Context) -> None:
    request = context if handler.request_streaming else await context.read()
    if request is grpc.aio.EOF:  # the call broke before its request came
        return
    if inspect.isasyncgenfunction(behaviour):
        async with contextlib.aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)
        return
    response = await behaviour(request, context)
    if not handler.response_streaming:
        await context.write(response)


_SERVERS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, LocalServer]] = WeakKeyDictionary()


def _servers() -> dict[str, LocalServer]:
    """The servers of the running event loop, by name."""
    return _SERVERS.setdefault(asyncio.get_running_loop(), {})
