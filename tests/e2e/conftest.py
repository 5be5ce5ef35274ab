"""Model folders that whole systems serve."""

import os
from pathlib import Path

import pytest

from augury.models import cache_folder
from tests.gateway.tiny import write_model
from tests.worker.tiny import save_llama
from worker_svc.model import smollm2


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    write_model(folder)
    save_llama(folder, vocab_size=400, max_position_embeddings=512, eos_token_id=2)
    return folder


@pytest.fixture(scope="session")
def smollm2_model() -> Path:
    """The real model, from the cache."""
    return smollm2.prepare(cache_folder(os.environ), progress=False)
