"""Carries a plan out: events befall processes one after another, and now and then before the last one is over."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.chaos.plan import Event, Fault
from deploy.chaos.stack import Stack

_LOOK_SECONDS = 0.1


@dataclass(slots=True, kw_only=True)
class Struck:
    """An event and the process it befell, from the signal until the process, or its successor, was ready again.

    Times are on the monotonic clock; ``ended`` is None while it lasts. ``flaw`` says what the process did wrong.
    """

    event: Event
    name: str
    began: float
    ended: float | None = None
    flaw: str | None = None


class Driver:
    """``tell`` takes a line for each event."""

    def __init__(self, stack: Stack, tell: Callable[[str], None]) -> None:
        self.struck: list[Struck] = []
        self._stack = stack
        self._tell = tell

    async def carry_out(self, plan: Sequence[Event]) -> None:
        """Return once all is over. Raises RuntimeError where not all workers take requests then."""
        async with asyncio.TaskGroup() as events:
            for event in plan:
                struck = await asyncio.to_thread(self._begin, event)
                task = events.create_task(asyncio.to_thread(self._suffer, struck))
                if not event.overlaps:
                    await task
                await asyncio.sleep(event.pause_s)
        await asyncio.to_thread(self._stack.until_whole)

    def _begin(self, event: Event) -> Struck:
        """Once no other process of its role is away."""
        while not (candidates := self._candidates(event)):
            time.sleep(_LOOK_SECONDS)
        name = candidates[int(event.pick * len(candidates))]
        struck = Struck(event=event, name=name, began=time.monotonic())
        self.struck.append(struck)
        number, at = len(self.struck), struck.began
        self._tell(f"{number:3}  {at:.1f}  {event.fault.value} {name}{' ...' if event.overlaps else ''}")
        return struck

    def _candidates(self, event: Event) -> list[str]:
        if any(struck.event.role is event.role for struck in self.struck if struck.ended is None):
            return []
        return ["one more"] if event.fault is Fault.GROW else self._stack.names(event.role)

    def _suffer(self, struck: Struck) -> None:
        try:
            self._befall(struck)
        except RuntimeError as error:
            struck.flaw = str(error)
        struck.ended = time.monotonic()

    def _befall(self, struck: Struck) -> None:
        """Raises RuntimeError where the process does not end well, or its successor does not start."""
        event, name, stack = struck.event, struck.name, self._stack
        match event.fault:
            case Fault.KILL:
                stack.kill(name)
                time.sleep(event.hold_s)
                stack.bring_back(name)
            case Fault.DRAIN:
                stack.drain(name)
                time.sleep(event.hold_s)
                stack.bring_back(name)
            case Fault.HANG:
                stack.send(name, signal.SIGSTOP)
                time.sleep(event.hold_s)
                stack.send(name, signal.SIGCONT)
            case Fault.GROW:
                struck.name = stack.add(event.role)
            case Fault.SHRINK:
                stack.drain(name)
