"""The gRPC face of the scheduler: requests of gateways come in, workers register, deltas go out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from augury import convert, limits
from augury.config import SchedulerSettings
from augury.errors import AuguryError, DeadlineError, InvalidRequestError, NoWorkerError, OverloadedError
from augury.geometry import scheduler_block
from augury.tracing import SILENT
from augury.types import Delta, Description, PoolSpec, Step, WorkerInfo, WorkerStatus
from augury.v1 import scheduler_pb2
from augury.v1.scheduler_pb2_grpc import SchedulerServicer, WorkersServicer
from scheduler_svc import spans
from scheduler_svc.clients import KvClient, KvHealth, WorkerClient
from scheduler_svc.core.cluster import Cluster, failed
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.loop import LaneLoop
from scheduler_svc.outbox import Outbox, Route
from scheduler_svc.spans import Spans
from scheduler_svc.watch import watch

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULTS = SchedulerSettings()
_ENDING = "this scheduler is ending"
_log = logging.getLogger(__name__)


class SchedulerService(SchedulerServicer, WorkersServicer):
    """``lane_config`` turns what a worker says of itself into its lane's settings; ``connect`` reaches an address."""

    def __init__(
        self,
        lane_config: Callable[[WorkerInfo], LaneConfig],
        kvcache: grpc.aio.Channel,
        connect: Callable[[str], grpc.aio.Channel],
        settings: SchedulerSettings = _DEFAULTS,
    ) -> None:
        self._lane_config = lane_config
        self._kvcache = kvcache
        self._health = KvHealth(kvcache)
        self._connect = connect
        self._settings = settings
        self._cluster = Cluster(limits.MAX_WAITING)
        self._loops: dict[str, LaneLoop] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._routes: dict[int, Route] = {}
        self._outboxes: set[Outbox] = set()
        self._spans = Spans()
        self._draining = False
        self._emptied = asyncio.Event()
        self._ended = asyncio.Event()

    async def drain(self) -> None:
        """Take no more requests or workers, and return once all requests have ended. All streams end then too."""
        self._draining = True
        for handle in list(self._cluster.parked):
            self._fail(handle, NoWorkerError(_ENDING))
        try:
            while self._routes:
                self._emptied.clear()
                await self._emptied.wait()
        finally:
            self._ended.set()
            for outbox in self._outboxes:
                outbox.close()

    # --- gateways ---

    async def Generate(
        self, request_iterator: AsyncIterator[scheduler_pb2.ClientMessage], context: Context
    ) -> AsyncIterator[scheduler_pb2.ServerMessage]:
        outbox = Outbox()
        self._outboxes.add(outbox)
        if self._ended.is_set():
            outbox.close()
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        reader.add_done_callback(lambda _: outbox.close())
        try:
            while deltas := await outbox.take():
                yield convert.deltas_to_wire(deltas)
            if reader.done():
                reader.result()
        finally:
            self._outboxes.remove(outbox)
            reader.cancel()
            for handle in list(outbox.handles.values()):
                self._cancel(handle)

    async def Describe(self, request: scheduler_pb2.DescribeRequest, context: Context) -> scheduler_pb2.Description:
        workers = list(self._workers.values())
        description = Description(
            model=workers[0].model if workers else None,
            max_model_len=min((loop.lane.config.max_len for loop in self._loops.values()), default=None),
            vocab_size=min((worker.vocab_size for worker in workers), default=None),
            num_parked=len(self._cluster.parked),
            flaws=await self._health.flaws(),
            workers=tuple(
                _status(loop, self._draining or name in self._cluster.draining) for name, loop in self._loops.items()
            ),
        )
        return convert.description_to_wire(description)

    async def _read(self, messages: AsyncIterator[scheduler_pb2.ClientMessage], outbox: Outbox) -> None:
        async for message in messages:
            if message.WhichOneof("body") == "submit":
                self._submit(message.submit, outbox)
            elif message.cancel.ticket in outbox.handles:
                self._cancel(outbox.handles[message.cancel.ticket])

    def _submit(self, submit: scheduler_pb2.Submit, outbox: Outbox) -> None:
        span = SILENT
        try:
            if self._draining:
                raise NoWorkerError(_ENDING)
            outbox.check_open(submit.ticket)
            generation = convert.submit_from_wire(submit)
            span = spans.begin(generation)
            handle = self._cluster.submit(replace(generation, trace=span.trace))
        except AuguryError as error:
            ended = failed(error)
            spans.finish(span, ended)
            outbox.put(Delta(ticket=submit.ticket, ended=ended))
            return
        self._spans.follow(handle, span)
        outbox.handles[submit.ticket] = handle
        clock = asyncio.get_running_loop()
        route = self._routes[handle] = Route(outbox=outbox, ticket=submit.ticket, submitted_at=clock.time())
        if generation.timeout_s is not None:
            too_late = DeadlineError("the deadline of the request has passed")
            route.deadline = clock.call_later(generation.timeout_s, self._fail, handle, too_late)
        self._await_worker(handle)
        self._wake()

    def _cancel(self, handle: int) -> None:
        delta = self._cluster.cancel(handle)
        if delta is not None:
            self._publish([delta])
        self._wake()

    def _fail(self, handle: int, error: AuguryError) -> None:
        self._publish(self._cluster.fail(handle, error))
        self._wake()

    def _await_worker(self, handle: int) -> None:
        """If the request is parked, it is for a while: for none where this scheduler is ending."""
        route = self._routes[handle]
        if handle in self._cluster.parked and route.patience is None:
            wait_s = 0.0 if self._draining else self._settings.wait_seconds
            error = NoWorkerError(_ENDING if self._draining else f"there has been no worker for {wait_s:g} s")
            route.patience = asyncio.get_running_loop().call_later(wait_s, self._fail, handle, error)

    def _stepped(self, worker_id: str, step: Step) -> None:
        self._spans.stepped(worker_id, step)
        for new in step.fresh:
            route = self._routes.get(new.handle)
            if route is not None and route.waited_ms is None:
                route.waited_ms = round(1000 * (asyncio.get_running_loop().time() - route.submitted_at))

    def _publish(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._spans.published(delta)
            route = self._routes[delta.ticket]
            if delta.ended:
                route.close()
                del self._routes[delta.ticket]
                self._cluster.forget(delta.ticket)
                self._emptied.set()
            route.outbox.put(replace(delta, ticket=route.ticket, waited_ms=route.waited_ms or 0))

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
        drive = asyncio.create_task(self._drive(info, loop))
        others = (
            self._listen(reports, info.worker_id, loop),
            watch(loop, self._settings, partial(self._cluster.has_other, info.worker_id)),
            self._ended.wait(),
        )
        tasks: set[asyncio.Task[Any]] = {drive, *map(asyncio.create_task, others)}
        try:
            yield scheduler_pb2.WorkerOrders(registered=True)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await self._lost(info, loop)
        if drive in done:
            await loop.retire()
            yield scheduler_pb2.WorkerOrders(released=True)

    def _new_loop(self, info: WorkerInfo) -> LaneLoop:
        if self._draining:
            raise NoWorkerError(_ENDING)
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
        lane = Scheduler(config, epoch=0, num_available=config.num_usable)
        self._workers[info.worker_id] = info
        kv, worker = KvClient(self._kvcache), WorkerClient(self._connect(info.address))
        loop = self._loops[info.worker_id] = LaneLoop(lane, _pool_spec(info), kv, worker, self._publish, self._stepped)
        return loop

    async def _drive(self, info: WorkerInfo, loop: LaneLoop) -> None:
        await loop.probe()
        await loop.open()
        self._publish(self._cluster.join(loop.lane))
        _log.info("a worker joined", extra={"worker": info.worker_id, "address": info.address})
        for handle, route in self._routes.items():
            if handle not in self._cluster.parked:
                route.worker_came()
        self._wake()
        await loop.run(partial(self._cluster.may_leave, info.worker_id))

    async def _lost(self, info: WorkerInfo, loop: LaneLoop) -> None:
        del self._workers[info.worker_id]
        del self._loops[info.worker_id]
        _log.info("a worker is gone", extra={"worker": info.worker_id, "num_requests": loop.lane.num_requests})
        self._publish(self._cluster.leave(info.worker_id))
        for handle in self._cluster.parked:
            self._await_worker(handle)
        self._wake()
        await loop.close()

    async def _listen(self, reports: AsyncIterator[scheduler_pb2.WorkerReport], worker: str, loop: LaneLoop) -> None:
        async for report in reports:
            loop.heard()
            if report.WhichOneof("body") == "leaving":
                self._cluster.drain(worker)
                loop.wake()


def _pool_spec(info: WorkerInfo) -> PoolSpec:
    return PoolSpec(
        pool=info.worker_id,
        incarnation=info.incarnation,
        fingerprint=info.fingerprint,
        epoch=0,
        num_blocks=info.num_blocks,
        groups=info.groups,
    )


def _status(loop: LaneLoop, draining: bool) -> WorkerStatus:
    lane, counters = loop.lane, loop.lane.counters
    return WorkerStatus(
        worker_id=lane.config.pool,
        ready=loop.ready and not draining,
        draining=draining,
        num_running=len(lane.running),
        num_waiting=len(lane.waiting),
        num_blocks=lane.config.num_blocks,
        num_available=lane.num_available,
        block_size=scheduler_block(lane.config.groups),
        queue_tokens=lane.queue_tokens,
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
        iteration_tokens=tuple(counters.iteration_tokens),
        total_iteration_tokens=counters.total_iteration_tokens,
    )
