"""The gRPC face of the worker: steps in, outcomes out, the engine on a thread of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

import grpc

from augury import convert
from augury.types import Outcome, Step
from augury.v1 import worker_pb2
from augury.v1.worker_pb2_grpc import WorkerServicer
from worker_svc.spans import Spans

Context = grpc.aio.ServicerContext[Any, Any]


class Executes(Protocol):
    """What the service needs of an engine."""

    def execute(self, step: Step) -> Outcome: ...

    def tags(self) -> Sequence[tuple[int, bytes]]: ...


class WorkerService(WorkerServicer):
    """``executor`` has one thread: steps run one after another, also those of a stream that broke and came back."""

    def __init__(self, engine: Executes, executor: Executor) -> None:
        self._engine = engine
        self._executor = executor
        self._spans = Spans()

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.Step], context: Context
    ) -> AsyncIterator[worker_pb2.Outcome]:
        loop = asyncio.get_running_loop()
        async for request in request_iterator:
            step = convert.step_from_wire(request)
            self._spans.begins(step)
            outcome = await loop.run_in_executor(self._executor, self._engine.execute, step)
            self._spans.ended(step, outcome)
            yield convert.outcome_to_wire(outcome)

    async def Tags(self, request: worker_pb2.TagsRequest, context: Context) -> worker_pb2.TagsReply:
        """As they are between two steps."""
        tags = await asyncio.get_running_loop().run_in_executor(self._executor, self._engine.tags)
        return convert.tags_to_wire(tags)
