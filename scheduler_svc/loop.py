"""Drives one worker: propose, ask the KV service, dispatch, ask the worker, apply; again, for as long as it lives."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from augury.errors import AuguryError, FencedError, UnknownPoolError
from augury.types import Delta, Grant, Outcome, PoolSpec, Proposal, Step
from scheduler_svc.clients import KvClient, WorkerClient
from scheduler_svc.core.scheduler import Scheduler

_FIRST_SKIP_US = 1_000_000

_log = logging.getLogger(__name__)


class LaneLoop:
    """One lane and its two streams. ``publish`` takes what each iteration brought, ``stepped`` each step as it goes.

    ``in_flight`` is the step that the worker is at; it is ``stalled`` where that takes too long (watch.py).
    """

    def __init__(
        self,
        lane: Scheduler,
        spec: PoolSpec,
        kv: KvClient,
        worker: WorkerClient,
        publish: Callable[[list[Delta]], None],
        stepped: Callable[[str, Step], None] = lambda *_: None,
    ) -> None:
        self.lane = lane
        self._spec = spec
        self._kv = kv
        self._worker = worker
        self._publish = publish
        self._stepped = stepped
        self._wake = asyncio.Event()
        self._failures = 0
        self._ahead_us = 0
        self._opened = False
        self.num_reports = 0
        self.in_flight: Step | None = None
        self.stalled = False

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def heard(self) -> None:
        """The worker gave a sign of life."""
        self.num_reports += 1

    @property
    def ready(self) -> bool:
        """Whether the worker takes requests and does not hang in a step."""
        return self._opened and not self.stalled

    async def probe(self) -> None:
        """Return once the worker's engine is between two steps. One that was given up in a step may be at it still.

        What its blocks hold is a hint for where to send requests.
        """
        self.lane.memory.learn(await self._worker.tags())

    async def open(self) -> None:
        """Begin a new epoch at the KV service; requests that were running start over with the tokens they have.

        An epoch is a time in microseconds. Where the pool or the worker knows of a later one, from a scheduler whose
        clock is ahead, this one skips ever more time until it is past it.
        """
        while True:
            epoch = max(time.time_ns() // 1000, self.lane.epoch + 1) + self._ahead_us
            self._spec = replace(self._spec, epoch=epoch)
            try:
                num_available = await self._kv.open_pool(self._spec)
            except FencedError:
                self._skip()
                continue
            self.lane.fence(epoch, num_available)
            self._opened = True
            return

    def _skip(self) -> None:
        self._ahead_us = max(_FIRST_SKIP_US, 2 * self._ahead_us)

    async def run(self, may_leave: Callable[[], bool] = lambda: False) -> None:
        """Iterate until it ``may_leave``, which is asked between steps.

        A refused message means a fence: nothing is lost but the work in flight.
        """
        while not may_leave():
            if not self.lane.has_work:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._iterate()
            except FencedError as error:
                _log.warning("fenced", extra={"pool": self._spec.pool, "error": str(error)})
                await self.open()
                self._skip()

    async def retire(self) -> None:
        """The worker is about to end, and its blocks with it."""
        await self._kv.close_pool(self._spec)

    async def close(self) -> None:
        self._kv.close()
        await self._worker.close()

    async def _iterate(self) -> None:
        try:
            grant = await self._ask_kv(self.lane.propose())
        except UnknownPoolError:
            await self._renew()
            return
        step = self.lane.dispatch(grant)
        if step is None:
            await asyncio.sleep(0)
            return
        self._stepped(self._spec.pool, step)
        outcome = await self._execute(step)
        if outcome is not None:
            self._publish(self.lane.apply(outcome))

    async def _ask_kv(self, proposal: Proposal | None) -> Grant | None:
        return None if proposal is None else await self._kv.step(proposal)

    async def _renew(self) -> None:
        """The KV service was restarted: it takes over the leases as they are, and what the worker's blocks hold.

        Raises FencedError where it refuses to.
        """
        self._kv.close()  # no message of before must reach the pool: its numbers begin anew
        holdings, content = self.lane.renew(await self._worker.tags())
        self.lane.num_available = await self._kv.open_pool(self._spec, holdings, content)
        _log.warning("pool renewed", extra={"pool": self._spec.pool, "leases": len(holdings), "blocks": len(content)})

    async def _execute(self, step: Step) -> Outcome | None:
        """The outcome; None where the worker refused the step, once after a fresh start, then its requests fail."""
        self.in_flight = step
        try:
            outcome = await self._worker.execute(step)
        except FencedError:
            raise
        except AuguryError as error:
            self._failures += 1
            _log.error(
                "a step failed", extra={"pool": self._spec.pool, "error": str(error), "failures": self._failures}
            )
            if self._failures > 1:
                self._publish([delta for row in step.rows for delta in self.lane.fail(row.handle, error)])
            await self.open()
            return None
        finally:
            self.in_flight = None
        self._failures = self._ahead_us = 0
        return outcome
