"""What a registry's URL may hold: schemes, a password, TLS."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcache_svc import registry_redis
from kvcache_svc.registry import open_registry
from tests.kvcache.registries import SPEC, entries, opened, stored, until
from tests.kvcache.tls_proxy import TlsProxy, make_certificate
from tests.redis_server import RedisServer


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    with RedisServer(password="s3cr@t") as server:
        yield server


@pytest.fixture(autouse=True)
def closing_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_redis, "CLOSE_SECONDS", 0.3)


async def works(url: str, registered_at: str) -> bool:
    """Whether what is recorded at ``url`` is found in the server at ``registered_at``; else the registry degrades."""
    async with opened(url) as registry:
        assert await registry.load(SPEC) == {}
        registry.record(SPEC, list(entries(1).items()), [])
        await asyncio.sleep(0.3)
        if registry.status != "redis":
            return False
        assert await stored(registered_at) == entries(1)
        registry.drop(SPEC.pool)
        await until(lambda: not registry._dropped)  # type: ignore[attr-defined]
    return True


async def test_a_password_is_needed_and_used(guarded: RedisServer) -> None:
    url = guarded.url.replace("s3cr@t", "s3cr%40t")
    assert await works(url, url)
    assert not await works(url.replace("s3cr", "wrong"), url)


async def test_tls_needs_a_certificate_that_is_trusted(guarded: RedisServer, tmp_path: Path) -> None:
    certificate, private_key = make_certificate(tmp_path)
    plain = guarded.url.replace("s3cr@t", "s3cr%40t")
    async with TlsProxy(guarded.port, certificate, private_key) as proxy:
        url = f"rediss://:s3cr%40t@127.0.0.1:{proxy.port}/0"
        assert await works(f"{url}?ssl_ca_certs={certificate}", plain)
        assert await works(f"{url}?ssl_cert_reqs=none&ssl_check_hostname=false", plain)
        assert not await works(url, plain), "the certificate is nobody's"
        assert not await works(url.replace("rediss", "redis"), plain), "the server speaks TLS alone"


def test_a_url_of_another_scheme_is_refused() -> None:
    async def attempt() -> None:
        open_registry("http://127.0.0.1", "augury")

    with pytest.raises(ValueError, match="redis://"):
        asyncio.run(attempt())
