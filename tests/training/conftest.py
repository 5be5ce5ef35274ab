"""SmolLM2's metadata, read once."""

from collections.abc import Mapping
from typing import Any

import pytest
from gguf import GGUFReader

from worker_svc.model import smollm2


@pytest.fixture(scope="session")
def gguf_fields() -> Mapping[str, Any]:
    return {name: field.contents() for name, field in GGUFReader(smollm2.find_gguf()).fields.items()}
