"""The scheduler's side of its streams to the KV service and to a worker.

Both send one message and wait for its answer. A stream that breaks is opened again and the same message sent again: it
carries (epoch, seq), so whoever got it the first time answers it again without doing it again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar, cast

import grpc

from augury import convert, limits, rpc
from augury.errors import FencedError, InternalError, NoWorkerError
from augury.types import Grant, Holding, Outcome, PoolSpec, Proposal, Step
from augury.v1 import kvcache_pb2, worker_pb2
from augury.v1.kvcache_pb2_grpc import KVCacheStub
from augury.v1.worker_pb2_grpc import WorkerStub

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_HEALTH_SECONDS = 1.0
_SHORT_S = 0.5
_log = logging.getLogger(__name__)


class PingPong(Generic[Sent, Received]):
    """A long-lived stream on which each message has one answer."""

    def __init__(self, name: str, call: Callable[[], grpc.aio.StreamStreamCall[Sent, Received]]) -> None:
        self._name = name
        self._open = call
        self._call: grpc.aio.StreamStreamCall[Sent, Received] | None = None

    async def ask(self, message: Sent) -> Received:
        """The answer to ``message``, however often the stream breaks. Raises the AuguryError of a refused call."""
        pause, longest = limits.CONNECT_RETRY_SECONDS
        while True:
            try:
                return await self._ask_once(message)
            except NoWorkerError as error:
                _log.warning("stream broke", extra={"peer": self._name, "error": str(error)})
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _ask_once(self, message: Sent) -> Received:
        """Raises NoWorkerError, the domain's UNAVAILABLE, where the peer cannot be reached or went away."""
        call = self._call or self._open()
        self._call = call
        try:
            await call.write(message)
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            self.close()
            if error.code() == grpc.StatusCode.CANCELLED:
                raise NoWorkerError("the stream was cancelled") from None
            raise rpc.to_domain(error) from None
        except asyncio.InvalidStateError:
            self.close()
            raise NoWorkerError("the stream had ended") from None
        if answer is grpc.aio.EOF:
            self.close()
            raise NoWorkerError("the stream ended")
        return cast(Received, answer)

    def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None


async def insist(name: str, call: Callable[[], grpc.aio.UnaryUnaryCall[Sent, Received]]) -> Received:
    """The answer to a unary ``call``, made again while its peer is unavailable. Raises the AuguryError of a refusal."""
    pause, longest = limits.CONNECT_RETRY_SECONDS
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise rpc.to_domain(error) from None
            _log.warning("a service is unavailable", extra={"peer": name})
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


class KvClient:
    """One worker's pool at the KV service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = KVCacheStub(channel)
        self._stream = PingPong[kvcache_pb2.Proposal, kvcache_pb2.Grant]("kvcache", self._stub.Step)

    async def open_pool(
        self, spec: PoolSpec, holdings: Sequence[Holding] = (), content: Sequence[tuple[int, bytes]] = ()
    ) -> int:
        """Open, renew or fence the pool, waiting for the service as long as it takes; returns the blocks available."""
        request = convert.pool_to_wire(spec, holdings, content)
        return (await insist("kvcache", lambda: self._stub.OpenPool(request))).num_available

    async def step(self, proposal: Proposal) -> Grant:
        """Raises FencedError or UnknownPoolError where the pool must be opened again."""
        return convert.grant_from_wire(await self._stream.ask(convert.proposal_to_wire(proposal)))

    async def close_pool(self, spec: PoolSpec) -> None:
        """Give the pool up. Where the service is away it is not told: it forgets what nobody uses."""
        request = kvcache_pb2.ClosePoolRequest(pool=spec.pool, epoch=spec.epoch)
        with suppress(grpc.aio.AioRpcError):
            await self._stub.ClosePool(request, timeout=_SHORT_S)

    def close(self) -> None:
        self._stream.close()


class KvHealth:
    """What does not work as it should at the KV service, asked at most once in _HEALTH_SECONDS."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = KVCacheStub(channel)
        self._flaws: tuple[str, ...] = ()
        self._fresh_until = float("-inf")

    async def flaws(self) -> tuple[str, ...]:
        """In words, for people."""
        now = asyncio.get_running_loop().time()
        if now >= self._fresh_until:
            self._fresh_until = now + _HEALTH_SECONDS
            self._flaws = await self._ask()
        return self._flaws

    async def _ask(self) -> tuple[str, ...]:
        try:
            reply = await self._stub.Status(kvcache_pb2.StatusRequest(), timeout=_SHORT_S)
        except grpc.aio.AioRpcError:
            return ("the KV service does not answer",)
        return ("the KV registry is degraded",) if "degraded" in reply.registry else ()


class WorkerClient:
    """One worker's engine."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = WorkerStub(channel)
        self._stream = PingPong[worker_pb2.Step, worker_pb2.Outcome]("worker", self._stub.Execute)

    async def execute(self, step: Step) -> Outcome:
        """Raises the AuguryError with which the worker refused the step."""
        outcome = convert.outcome_from_wire(await self._stream.ask(convert.step_to_wire(step)))
        if (outcome.epoch, outcome.seq) != (step.epoch, step.seq):
            raise FencedError(f"asked for {(step.epoch, step.seq)}, got {(outcome.epoch, outcome.seq)}")
        if len(outcome.emitted) != len(step.rows):
            raise InternalError(f"{len(outcome.emitted)} rows came back for {len(step.rows)}")
        return outcome

    async def tags(self) -> list[tuple[int, bytes]]:
        """The worker's sealed blocks and their keys."""
        return convert.tags_from_wire(await insist("worker", lambda: self._stub.Tags(worker_pb2.TagsRequest())))

    async def close(self) -> None:
        self._stream.close()
        await self._channel.close()
