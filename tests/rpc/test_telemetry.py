"""Logs are JSON lines on stderr."""

import json
import logging
from collections.abc import Iterator

import pytest

from augury import telemetry


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_record_is_one_json_line_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.setup("info")
    logging.getLogger("gateway.app").info("done in %d ms", 12, extra={"request_id": "r1", "path": object})
    (line,) = capsys.readouterr().err.splitlines()
    fields = json.loads(line)
    assert fields.pop("time").startswith("20")
    assert fields == {
        "level": "info",
        "logger": "gateway.app",
        "event": "done in 12 ms",
        "request_id": "r1",
        "path": "<class 'object'>",
    }


def test_an_exception_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.setup("info")
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("x").exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"].endswith("KeyError: 'lost'")


def test_records_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.setup("warning")
    logging.getLogger("x").info("chatter")
    assert capsys.readouterr().err == ""
