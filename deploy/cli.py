"""The `augury` command."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from augury import config, process, telemetry, tracing
from augury.models import cache_folder

USAGE = """usage: augury COMMAND [options]

  serve          all services in one process, with an OpenAI-compatible address
  chat           chat with a running server in the terminal
  model prepare  build a model's folder from a package that is installed
  bench          measure a server or the engine
  chaos          kill and hang every service under load, and compare every text
  kv inspect     pools, hit rates and hottest prefixes of a running KV service
  settings       every setting, its default and meaning
  metrics        every metric, its type, labels and meaning

augury COMMAND --help tells more."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 2 where the command line, the settings or the surroundings are wrong."""
    match list(sys.argv[1:] if argv is None else argv):
        case ["serve", *options]:
            return _refusing(_serve, options)
        case ["model", "prepare", *options]:
            return _refusing(_prepare, options)
        case ["chat", *options]:
            from deploy import chat

            return chat.main(options)
        case ["bench", *options]:
            from deploy.bench import app

            return app.main(options)
        case ["chaos", *options]:
            from deploy.chaos import app as chaos

            return _refusing(chaos.main, options)
        case ["kv", "inspect", *options]:
            from deploy import kv

            return _refusing(kv.main, options)
        case ["settings"]:
            print(settings_table())
            return 0
        case ["metrics"]:
            from deploy import metrics

            print(metrics.page())
            return 0
        case ["-h" | "--help"]:
            print(USAGE)
            return 0
        case _:
            print(USAGE, file=sys.stderr)
            return 2


def settings_table() -> str:
    """Every setting as a line of a Markdown table."""
    rows = [f"| `{entry.name}` | `{_shown(entry.default)}` | {entry.meaning} |" for entry in config.entries()]
    return "\n".join(["| setting | default | meaning |", "| --- | --- | --- |", *rows])


def _shown(value: object) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _refusing(command: Callable[[Sequence[str]], int | None], options: Sequence[str]) -> int:
    try:
        return command(options) or 0
    except (ValueError, OSError) as error:
        print(f"augury: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _serve(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="augury serve", description="All services in one process.")
    parser.add_argument("--model", help="folder of the model, or one known by name: smollm2 (the default), story")
    parser.add_argument("--host", help="address to bind (default: 127.0.0.1)")
    parser.add_argument("--port", help="port to bind, 0 for a free one (default: 8000)")
    parser.add_argument("--greet", action="store_true", help="ask the model one question after the start")
    process.add_settings_options(parser)
    options = parser.parse_args(argv)
    shorthand = {"model.path": options.model, "gateway.host": options.host, "gateway.port": options.port}
    given = [f"{name}={value}" for name, value in shorthand.items() if value is not None]
    settings = process.settings_from(options, *given)
    telemetry.setup(settings.log.level)
    tracing.setup("augury", settings.telemetry)

    from deploy import chat, serve
    from worker_svc.model.named import ready_folder

    folder = ready_folder(settings.model.path, os.environ, progress=True)
    greeting = serve.Greeting(api_key=os.environ.get(chat.KEY_VARIABLE)) if options.greet else None
    serve.main(settings, folder, greeting)


def _prepare(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="augury model prepare", description="Build a model's folder, once.")
    from worker_svc.model import named

    parser.add_argument("name", choices=named.NAMES, help="SmolLM2-135M-Instruct, or the tiny story model")
    parser.add_argument("--cache", type=Path, default=cache_folder(os.environ), help="default: %(default)s")
    options = parser.parse_args(argv)
    print(named.prepare(options.name, options.cache, progress=True))


if __name__ == "__main__":
    sys.exit(main())
