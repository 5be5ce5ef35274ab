"""What the gateway tests share."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from augury.types import Generation
from gateway.app import create_app
from gateway.model import ServedModel
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.serving import serving
from tests.gateway.tiny import write_model

REPLY = "the quick größer 日本語 🙂 stop here"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def model(folder: Path) -> ServedModel:
    return ServedModel.load(folder, "tiny")


@pytest.fixture
def backend(model: ServedModel) -> ScriptedBackend:
    """Says REPLY and ends."""
    (tokens,) = model.encode([REPLY], add_special_tokens=False)

    def script(generation: Generation) -> Script:
        return Script(tokens=[*tokens, 2])

    return ScriptedBackend(script)


@pytest.fixture
def port(backend: ScriptedBackend, model: ServedModel) -> Iterator[int]:
    with serving(create_app(backend, model)) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client
