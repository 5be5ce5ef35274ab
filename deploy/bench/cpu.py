"""CPU time of processes and their children, from /proc (Linux)."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    pid: int
    parent: int
    ticks: int


def cpu_seconds(pids: Collection[int]) -> float:
    """User and system time so far of ``pids``, all their descendants, and the children these have reaped.

    Raises ValueError where one of ``pids`` does not run.
    """
    processes = {process.pid: process for process in _running()}
    if gone := [pid for pid in pids if pid not in processes]:
        raise ValueError(f"no such process: {', '.join(map(str, gone))}")
    family = set(pids)
    while grown := {process.pid for process in processes.values() if process.parent in family} - family:
        family |= grown
    return sum(processes[pid].ticks for pid in family) / _TICKS_PER_S


def _running() -> Iterator[_Process]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                yield _parse(int(entry.name), (entry / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue


def _parse(pid: int, stat: str) -> _Process:
    # proc_pid_stat(5): the name in parentheses may hold anything; after it come state, ppid, …, and as 14th to 17th of
    # the line utime, stime, cutime, cstime, the latter two of children that were waited for.
    fields = stat[stat.rindex(")") + 2 :].split()
    return _Process(pid=pid, parent=int(fields[1]), ticks=sum(map(int, fields[11:15])))
