"""What every service process does alike: read settings, start, say where, wait for a signal, drain, stop."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import uvloop

from augury import config, telemetry, tracing
from augury.config import Settings

STOP_GRACE_S = 5.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Running(Protocol):
    """A started service. ``address`` is where others reach it."""

    @property
    def address(self) -> str: ...

    async def drain(self) -> None:
        """Take no new work, and return once what is under way has ended or goes on elsewhere. May be cancelled."""

    async def stop(self, grace_s: float) -> None:
        """Take no more calls and end within about ``grace_s`` seconds."""


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """``--config FILE`` and ``--set name=value``."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="overrides", help="one setting; see the README"
    )


def settings_from(options: argparse.Namespace, *more: str) -> Settings:
    """Settings from file, environment and options, in that order, then ``more`` overrides. Raises ValueError."""
    return config.load(options.config, os.environ, [*options.overrides, *more])


def main(name: str, start: Callable[[Settings], Awaitable[Running]], argv: Sequence[str] | None = None) -> int:
    """Run one service until SIGTERM or SIGINT. Exit status 2: settings or surroundings do not permit a start."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=f"Augury: {name}")
    add_settings_options(parser)
    options = parser.parse_args(argv)
    try:
        settings = settings_from(options)
        telemetry.setup(settings.log.level)
        tracing.setup(f"augury-{name.removesuffix('_svc')}", settings.telemetry)
        uvloop.run(_serve(name, start, settings))
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(name: str, start: Callable[[Settings], Awaitable[Running]], settings: Settings) -> None:
    stopping = stop_signal()
    running = await start(settings)
    print(f"{name} ready at {running.address}", flush=True)
    await stopping.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(settings.service.drain_seconds):
            await running.drain()
    await running.stop(STOP_GRACE_S)


def stop_signal() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; a second one ends the process at once."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # a KeyboardInterrupt would have to unwind through uvloop

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    return stopping
