"""A service as a process, with what it printed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

START_SECONDS = 90.0


@dataclass(slots=True)
class Process:
    """Ready once it prints a line with ``mark``; the last word of that line is its ``address``."""

    popen: subprocess.Popen[str]
    mark: str
    ready: threading.Event = field(default_factory=threading.Event)
    address: str = ""
    output: list[str] = field(default_factory=list)

    def wait_ready(self) -> str:
        """The address. Raises RuntimeError with what the process printed where it does not get ready."""
        if not (self.ready.wait(START_SECONDS) and self.address):
            raise RuntimeError("".join(self.output))
        return self.address

    def kill(self) -> None:
        """SIGKILL."""
        self.popen.kill()
        self.popen.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit status. Raises subprocess.TimeoutExpired where it does not end."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(START_SECONDS)

    def watch(self) -> None:
        """Read what it prints until it ends."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.output.append(line)
            if self.mark in line:
                self.address = line.split()[-1]
                self.ready.set()
        self.ready.set()


def start(command: Sequence[str], mark: str) -> Process:
    """Started, and watched."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    popen = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    process = Process(popen, mark)
    threading.Thread(target=process.watch, daemon=True).start()
    return process


def start_service(module: str, settings: Mapping[str, str]) -> Process:
    """`python -m module` with ``settings`` by dotted name."""
    options = [option for pair in settings.items() for option in ("--set", "=".join(pair))]
    return start([sys.executable, "-m", module, *options], f"{module} ready at ")
