"""A scheduler that says what a test tells it to, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from augury import rpc
from augury.convert import deltas_to_wire, submit_from_wire
from augury.types import Delta, Generation
from augury.v1 import scheduler_pb2 as pb
from augury.v1 import scheduler_pb2_grpc as pb_grpc


@dataclass
class Scheduler:
    """Says tokens on command; ``say`` sends one message on the newest stream."""

    num_streams: int = 0
    submitted: dict[int, Generation] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    outbox: asyncio.Queue[pb.ServerMessage | None] = field(default_factory=asyncio.Queue)

    def servicer(self) -> Any:
        base: Any = pb_grpc.SchedulerServicer
        made = base()
        made.Generate, made.Describe = self.generate, self.describe
        return made

    async def generate(self, requests: Any, context: Any) -> AsyncIterator[pb.ServerMessage]:
        self.num_streams += 1
        self.outbox = asyncio.Queue()
        reader = asyncio.create_task(self._read(requests))
        try:
            while (message := await self.outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()

    async def describe(self, request: Any, context: Any) -> pb.Description:
        busy = pb.WorkerState(ready=True, num_running=3, num_waiting=2)
        return pb.Description(max_model_len=64, vocab_size=100, workers=[busy, pb.WorkerState()], num_parked=1)

    async def _read(self, requests: Any) -> None:
        async for message in requests:
            async with self.changed:
                if message.HasField("submit"):
                    self.submitted[message.submit.ticket] = submit_from_wire(message.submit)
                else:
                    self.cancelled.append(message.cancel.ticket)
                self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(condition)

    def say(self, *deltas: Delta) -> None:
        self.outbox.put_nowait(deltas_to_wire(deltas))

    def ticket(self, request_id: str) -> int:
        (ticket,) = (ticket for ticket, asked in self.submitted.items() if asked.request_id == request_id)
        return ticket


@asynccontextmanager
async def serving(scheduler: Scheduler, address: str) -> AsyncIterator[rpc.Listener]:
    add = partial(pb_grpc.add_SchedulerServicer_to_server, scheduler.servicer())
    listener = await rpc.listen(address, add)
    try:
        yield listener
    finally:
        await listener.stop(0)
