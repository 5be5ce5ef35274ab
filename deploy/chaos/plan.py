"""What befalls which process when: a list of events that follows from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a process is."""

    WORKER = "worker"
    SCHEDULER = "scheduler"
    KVCACHE = "kvcache"
    REDIS = "redis"
    GATEWAY = "gateway"


class Fault(Enum):
    """KILL: SIGKILL, and a successor. HANG: SIGSTOP, later SIGCONT. DRAIN: SIGTERM, and a successor. GROW: one more
    process. SHRINK: one less, by SIGTERM.
    """

    KILL = "kill"
    HANG = "hang"
    DRAIN = "drain"
    GROW = "grow"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``hold_s`` passes before the process comes back, ``pause_s`` afterwards, before the next event.

    ``pick`` in [0, 1) says which of the processes of that role. An event that ``overlaps`` leaves the next one no time:
    the process is not back yet.
    """

    role: Role
    fault: Fault
    pick: float
    hold_s: float
    pause_s: float
    overlaps: bool


_KILLS = (Role.WORKER, Role.SCHEDULER, Role.KVCACHE, Role.REDIS, Role.WORKER, Role.SCHEDULER, Role.WORKER)
"""Whom kills go to, in turn."""

_OTHERS = (
    (Role.WORKER, Fault.HANG),
    (Role.GATEWAY, Fault.DRAIN),
    (Role.WORKER, Fault.GROW),
    (Role.SCHEDULER, Fault.HANG),
    (Role.WORKER, Fault.SHRINK),
    (Role.SCHEDULER, Fault.DRAIN),
    (Role.WORKER, Fault.DRAIN),
    (Role.KVCACHE, Fault.HANG),
    (Role.REDIS, Fault.HANG),
    (Role.KVCACHE, Fault.DRAIN),
)
"""Faults that kill nobody, in turn."""

_HANG_S = {Role.WORKER: (3.0, 6.0), Role.SCHEDULER: (1.0, 12.0), Role.KVCACHE: (0.5, 2.0), Role.REDIS: (0.5, 5.0)}
_ABSENT_S = (0.0, 1.5)
_PAUSE_S = (0.3, 1.5)
_OVERLAP_SHARE = 0.25


def make_plan(seed: int, num_kills: int, num_others: int) -> list[Event]:
    """``num_kills`` kills and ``num_others`` other faults, shuffled; kinds are as even as the numbers permit."""
    rng = random.Random(seed)
    kinds = [(_KILLS[index % len(_KILLS)], Fault.KILL) for index in range(num_kills)]
    kinds += [_OTHERS[index % len(_OTHERS)] for index in range(num_others)]
    rng.shuffle(kinds)
    return [_event(rng, role, fault) for role, fault in _grown_before_shrunk(kinds)]


def _grown_before_shrunk(kinds: list[tuple[Role, Fault]]) -> Iterator[tuple[Role, Fault]]:
    """The same, but never fewer processes than there were at first."""
    num_more = 0
    for index, (role, fault) in enumerate(kinds):
        if fault is Fault.SHRINK and not num_more:
            later = next((i for i in range(index, len(kinds)) if kinds[i][1] is Fault.GROW), None)
            if later is None:
                continue
            kinds[later], fault = (role, fault), Fault.GROW
        num_more += (fault is Fault.GROW) - (fault is Fault.SHRINK)
        yield role, fault


def _event(rng: random.Random, role: Role, fault: Fault) -> Event:
    return Event(
        role=role,
        fault=fault,
        pick=rng.random(),
        hold_s=rng.uniform(*(_HANG_S[role] if fault is Fault.HANG else _ABSENT_S)),
        pause_s=rng.uniform(*_PAUSE_S),
        overlaps=rng.random() < _OVERLAP_SHARE,
    )
