"""`python -m gateway`: the HTTP server as a process of its own."""

import argparse
import sys

import uvloop

from augury import process, rpc, telemetry, tracing
from augury.config import Settings
from gateway.server import serve


def main() -> int:
    """Serve until SIGTERM or SIGINT. Exit status 2: settings or surroundings do not permit a start."""
    parser = argparse.ArgumentParser(prog="python -m gateway", description="Augury: gateway")
    process.add_settings_options(parser)
    options = parser.parse_args()
    try:
        settings = process.settings_from(options)
        telemetry.setup(settings.log.level)
        tracing.setup("augury-gateway", settings.telemetry)
        uvloop.run(_serve(settings))
    except (ValueError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(settings: Settings) -> None:
    stopping = process.stop_signal()
    channels = [rpc.connect(address) for address in settings.scheduler.reached_at]
    await serve(settings, channels, stopping, lambda url: print(f"gateway ready at {url}", flush=True))
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    sys.exit(main())
