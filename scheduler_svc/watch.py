"""Watches one worker, and gives it up when it falls silent or hangs in a step that others could do."""

import asyncio
from collections.abc import Callable

from augury.config import SchedulerSettings
from augury.errors import NoWorkerError
from scheduler_svc.loop import LaneLoop

_LOOKS = 10
"""How often a worker is looked at before it is given up."""


async def watch(loop: LaneLoop, settings: SchedulerSettings, has_other: Callable[[], bool]) -> None:
    """Raises NoWorkerError once the worker is given up. ``has_other``: whether another could do its work.

    It counts how often it looked instead of reading a clock, so that a scheduler that was held up itself, with what its
    workers say still unread, blames none of them.
    """
    pause = min(settings.silence_seconds, settings.stall_seconds) / _LOOKS
    num_reports, step = loop.num_reports, loop.in_flight
    silent = stalled = 0
    while True:
        await asyncio.sleep(pause)
        silent = silent + 1 if loop.num_reports == num_reports else 0
        stalled = stalled + 1 if step is not None and loop.in_flight is step else 0
        num_reports, step = loop.num_reports, loop.in_flight
        loop.stalled = stalled * pause >= settings.stall_seconds
        if silent * pause >= settings.silence_seconds:
            raise NoWorkerError(f"nothing was heard of the worker for {settings.silence_seconds:g} s")
        if loop.stalled and has_other():
            raise NoWorkerError(f"the worker has been in one step for {settings.stall_seconds:g} s")
