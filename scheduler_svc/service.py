"""The gRPC face of the scheduler: requests of gateways come in, workers register, deltas go out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc

from augury import convert, limits
from augury.errors import AuguryError, InvalidRequestError, OverloadedError
from augury.geometry import scheduler_block
from augury.types import Delta, Description, PoolSpec, WorkerInfo, WorkerStatus
from augury.v1 import scheduler_pb2
from augury.v1.scheduler_pb2_grpc import SchedulerServicer, WorkersServicer
from scheduler_svc.clients import KvClient, WorkerClient
from scheduler_svc.core.cluster import Cluster, failed
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.loop import LaneLoop
from scheduler_svc.outbox import Outbox

Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerService(SchedulerServicer, WorkersServicer):
    """``lane_config`` turns what a worker says of itself into its lane's settings; ``connect`` reaches an address."""

    def __init__(
        self,
        lane_config: Callable[[WorkerInfo], LaneConfig],
        kvcache: grpc.aio.Channel,
        connect: Callable[[str], grpc.aio.Channel],
    ) -> None:
        self._lane_config = lane_config
        self._kvcache = kvcache
        self._connect = connect
        self._cluster = Cluster(limits.MAX_WAITING)
        self._loops: dict[str, LaneLoop] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._routes: dict[int, tuple[Outbox, int]] = {}

    # --- gateways ---

    async def Generate(
        self, request_iterator: AsyncIterator[scheduler_pb2.ClientMessage], context: Context
    ) -> AsyncIterator[scheduler_pb2.ServerMessage]:
        outbox = Outbox()
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        reader.add_done_callback(lambda _: outbox.close())
        try:
            while deltas := await outbox.take():
                yield convert.deltas_to_wire(deltas)
            await reader
        finally:
            reader.cancel()
            for handle in list(outbox.handles.values()):
                self._cancel(handle)

    async def Describe(self, request: scheduler_pb2.DescribeRequest, context: Context) -> scheduler_pb2.Description:
        workers = list(self._workers.values())
        description = Description(
            model=workers[0].model if workers else None,
            max_model_len=self._cluster.max_len,
            vocab_size=min((worker.vocab_size for worker in workers), default=None),
            num_parked=len(self._cluster.parked),
            workers=tuple(map(_status, self._loops.values())),
        )
        return convert.description_to_wire(description)

    async def _read(self, messages: AsyncIterator[scheduler_pb2.ClientMessage], outbox: Outbox) -> None:
        async for message in messages:
            if message.WhichOneof("body") == "submit":
                self._submit(message.submit, outbox)
            elif message.cancel.ticket in outbox.handles:
                self._cancel(outbox.handles[message.cancel.ticket])

    def _submit(self, submit: scheduler_pb2.Submit, outbox: Outbox) -> None:
        try:
            outbox.check_open(submit.ticket)
            handle = self._cluster.submit(convert.submit_from_wire(submit))
        except AuguryError as error:
            outbox.put(Delta(ticket=submit.ticket, ended=failed(error)))
            return
        outbox.handles[submit.ticket] = handle
        self._routes[handle] = (outbox, submit.ticket)
        self._wake()

    def _cancel(self, handle: int) -> None:
        delta = self._cluster.cancel(handle)
        if delta is not None:
            self._publish([delta])
        self._wake()

    def _publish(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            outbox, ticket = self._routes[delta.ticket]
            if delta.ended:
                del self._routes[delta.ticket]
                self._cluster.forget(delta.ticket)
            outbox.put(replace(delta, ticket=ticket))

    def _wake(self) -> None:
        for loop in self._loops.values():
            loop.wake()

    # --- workers ---

    async def Register(
        self, request_iterator: AsyncIterator[scheduler_pb2.WorkerReport], context: Context
    ) -> AsyncIterator[scheduler_pb2.WorkerOrders]:
        reports = aiter(request_iterator)
        first = await anext(reports)
        if first.WhichOneof("body") != "hello":
            raise InvalidRequestError("a worker's first message must be its hello")
        info = convert.hello_from_wire(first.hello)
        loop = self._new_loop(info)
        tasks = {asyncio.create_task(_listen(reports, loop)), asyncio.create_task(self._drive(info, loop))}
        try:
            yield scheduler_pb2.WorkerOrders(registered=True)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await self._lost(info, loop)

    def _new_loop(self, info: WorkerInfo) -> LaneLoop:
        if info.worker_id in self._workers:
            raise InvalidRequestError(f"a worker {info.worker_id} is registered already", "worker_id")
        if len(self._workers) >= limits.MAX_WORKERS:
            raise OverloadedError(f"{limits.MAX_WORKERS} workers are registered already")
        served = {(worker.model, worker.vocab_size) for worker in self._workers.values()}
        if served and (info.model, info.vocab_size) not in served:
            raise InvalidRequestError(f"the workers here serve {sorted(served)[0][0]}, not {info.model}", "model")
        try:
            config = self._lane_config(info)
        except ValueError as error:
            raise InvalidRequestError(f"worker {info.worker_id} cannot be served: {error}") from error
        lane = Scheduler(config, epoch=0, num_available=0)
        self._workers[info.worker_id] = info
        kv, worker = KvClient(self._kvcache), WorkerClient(self._connect(info.address))
        loop = self._loops[info.worker_id] = LaneLoop(lane, _pool_spec(info), kv, worker, self._publish)
        return loop

    async def _drive(self, info: WorkerInfo, loop: LaneLoop) -> None:
        await loop.open()
        self._publish(self._cluster.join(loop.lane))
        await loop.run()

    async def _lost(self, info: WorkerInfo, loop: LaneLoop) -> None:
        del self._workers[info.worker_id]
        del self._loops[info.worker_id]
        self._publish(self._cluster.leave(info.worker_id))
        self._wake()
        await loop.close()


async def _listen(reports: AsyncIterator[scheduler_pb2.WorkerReport], loop: LaneLoop) -> None:
    async for _ in reports:
        loop.heard()


def _pool_spec(info: WorkerInfo) -> PoolSpec:
    return PoolSpec(
        pool=info.worker_id,
        incarnation=info.incarnation,
        fingerprint=info.fingerprint,
        epoch=0,
        num_blocks=info.num_blocks,
        groups=info.groups,
    )


def _status(loop: LaneLoop) -> WorkerStatus:
    lane, counters = loop.lane, loop.lane.counters
    return WorkerStatus(
        worker_id=lane.config.pool,
        ready=loop.ready,
        num_running=len(lane.running),
        num_waiting=len(lane.waiting),
        num_blocks=lane.config.num_blocks,
        num_available=lane.num_available,
        block_size=scheduler_block(lane.config.groups),
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        hit_tokens=counters.hit_tokens,
        query_tokens=counters.query_tokens,
        num_preemptions=counters.num_preemptions,
        num_iterations=counters.num_iterations,
        num_refused=counters.num_refused,
        num_drafts=counters.num_drafts,
        draft_tokens=counters.draft_tokens,
        accepted_at=tuple(counters.accepted_at),
        accepted_lengths=tuple(counters.accepted_lengths),
        misses=dict(counters.misses),
    )
