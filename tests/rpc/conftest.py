"""What the RPC tests share."""

from typing import Any

import pytest


@pytest.fixture(params=["tcp", "unix", "local"])
def address(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return {"tcp": "127.0.0.1:0", "unix": f"unix:{tmp_path}/s", "local": "local:kv"}[request.param]
