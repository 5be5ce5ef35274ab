"""Logs: one JSON object a line on stderr, with ids, counts and times; prompts only where log.prompts is set."""

import logging
import sys
from contextvars import ContextVar

import msgspec

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The request that the running task works for: every line it logs carries it."""

_CHATTY = ("uvicorn", "httpx")
"""Libraries whose every request and start is an event to them."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def setup(level: str) -> None:
    """Log at ``level`` (as ``log.level``) and above. Fields given as ``extra={"request_id": …}`` become keys."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for library in _CHATTY:
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.root.level))


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **({"request_id": working_for} if (working_for := request_id.get()) else {}),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
