"""Keys of a file let clients in, and nobody else; the file may change at any time."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from gateway.api_keys import ApiKeys
from gateway.app import create_app
from gateway.door import Door
from gateway.model import ServedModel
from tests.gateway.scripted import ScriptedBackend
from tests.gateway.serving import serving

FILE = """
# the keys of a test
sk-one
sk-two   team a   # replaced soon
\tsk-three\tteam a
sk-#four team b
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(FILE)
    return file


def ask(keys: ApiKeys, key: str) -> bytes | None:
    return keys.client(f"Bearer {key}")


def test_keys_of_one_name_are_one_client_and_all_others_are_apart(file: Path) -> None:
    keys = ApiKeys(file)
    one, two, three, four = (ask(keys, key) for key in ("sk-one", "sk-two", "sk-three", "sk-#four"))
    assert two == three
    assert None not in (one, two, four)
    assert len({one, two, four}) == 3
    assert ask(ApiKeys(file), "sk-one") == one


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer sk-on", "Bearer sk-one2", "sk-one", "Basic sk-one", "Bearer team a"]
)
def test_nothing_but_a_key_is_a_key(file: Path, header: str) -> None:
    assert ApiKeys(file).client(header) is None


def test_the_scheme_is_known_in_any_case(file: Path) -> None:
    keys = ApiKeys(file)
    assert keys.client("bearer sk-one") == keys.client("BEARER  sk-one ") == ask(keys, "sk-one")


def test_a_changed_file_is_read_again(file: Path) -> None:
    keys = ApiKeys(file)
    file.write_text("sk-new\n")
    assert ask(keys, "sk-one") is None
    assert ask(keys, "sk-new")
    replaced = file.with_name("other")  # as Kubernetes does it: one step from the old file to the new one
    replaced.write_text("sk-old\n")
    os.replace(replaced, file)
    assert ask(keys, "sk-new") is None
    assert ask(keys, "sk-old")


@pytest.mark.parametrize(
    "spoil",
    [Path.unlink, lambda file: file.write_text("# none\n"), lambda file: file.write_bytes(b"\xff")],
    ids=["gone", "empty", "no text"],
)
def test_a_spoiled_file_stops_a_start_but_not_a_running_gateway(
    file: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    keys = ApiKeys(file)
    spoil(file)
    with pytest.raises(ValueError, match="key"):
        ApiKeys(file)
    assert ask(keys, "sk-one")
    assert ask(keys, "sk-wrong") is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    file.write_text("sk-new")
    assert ask(keys, "sk-one") is None
    assert ask(keys, "sk-new")


@pytest.mark.parametrize("line", ["sk-größer", "sk-\x07", "sk-one other"])
def test_a_key_that_cannot_be_sent_or_comes_twice_is_refused_with_its_line_and_untold(file: Path, line: str) -> None:
    file.write_text(f"sk-one\n\n{line}\n")
    with pytest.raises(ValueError, match="line 3") as caught:
        ApiKeys(file)
    assert "sk-" not in str(caught.value)


@pytest.fixture
def guarded(backend: ScriptedBackend, model: ServedModel, file: Path) -> Iterator[str]:
    """The address of a gateway that wants keys."""
    with serving(create_app(backend, model, Door(ApiKeys(file)))) as port:
        yield f"http://127.0.0.1:{port}"


def test_the_official_client_is_let_in_with_its_key_only(guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with openai.OpenAI(base_url=f"{guarded}/v1", api_key="sk-one", max_retries=0) as client:
        assert client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}]).choices
        assert client.models.list().data
        for stream in (False, True):
            with pytest.raises(openai.AuthenticationError) as caught:
                client.with_options(api_key="sk-wrong").completions.create(model="tiny", prompt="a", stream=stream)
            assert caught.value.code == "invalid_api_key"
    told = [record.getMessage() for record in caplog.records if record.name.startswith(("gateway", "uvicorn"))]
    assert not any("sk-" in line for line in told)


def test_without_a_key_only_health_and_metrics_answer(guarded: str, backend: ScriptedBackend) -> None:
    with httpx.Client(base_url=guarded) as http:
        for path in ("/health", "/health/ready", "/health/live", "/metrics"):
            assert http.get(path).status_code == 200
        answers = [http.get(path) for path in ("/v1/models", "/v1/models/tiny", "/version")]
        bodies = ({"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a"}, {"prompt": "a"}, {"tokens": [5]})
        paths = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
        answers += [http.post(path, json=body) for path, body in zip(paths, bodies, strict=True)]
        for answer in answers:
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
        assert http.post("/v1/completions", content=json.dumps({"prompt": 5})[:5]).status_code == 401
        page = http.get("/metrics").text
    assert 'augury_http_requests_total{route="/v1/completions",status="401"} 2.0' in page
    assert backend.seen == []
