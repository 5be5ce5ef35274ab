"""Two API keys never share cached prefixes, unless the operator opened a salt to all and both ask for it."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api_keys import ApiKeys
from gateway.door import Door
from gateway.isolation import cache_salt
from tests.gateway.whole import complete, system, write_llama

clients = st.sampled_from([None, b"1" * 32, b"2" * 32])
salts = st.sampled_from([None, "a", "b", "public"])


@given(st.lists(st.tuples(clients, salts), min_size=2, max_size=2, unique=True), salts)
def test_salts_are_equal_only_where_both_ask_for_the_shared_one(
    askers: list[tuple[bytes | None, str | None]], shared: str | None
) -> None:
    (first, first_own), (second, second_own) = askers
    same = cache_salt(first, first_own, shared) == cache_salt(second, second_own, shared)
    assert same == (shared is not None and first_own == second_own == shared)


@given(clients, salts)
def test_a_shared_salt_of_another_name_changes_nothing(client: bytes | None, own: str | None) -> None:
    assert cache_salt(client, own, None) == cache_salt(client, own, "public" if own != "public" else "other")


def test_without_keys_and_salts_all_share_the_plain_root() -> None:
    assert cache_salt(None, None, "public") == b""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


def bearer(key: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_prompt_is_found_again_by_its_own_client_alone(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\nthree team\nfour team\n")
    prompts = iter([seed, *range(6, 70)] for seed in range(5, 100))

    async with system(llama, door=Door(ApiKeys(file)), shared_salt="public") as http:

        async def cached(prompt: list[int], key: str, **fields: object) -> int:
            usage = await complete(http, prompt, bearer(key), max_tokens=1, **fields)
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        prompt = next(prompts)
        assert [await cached(prompt, key) for key in ("one", "two", "three")] == [0, 0, 0]
        assert min([await cached(prompt, key) for key in ("one", "two", "four")]) >= 48
        for first, second in combinations([{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "public"}], 2):
            prompt = next(prompts)
            assert [await cached(prompt, "one", **fields) for fields in (first, second)] == [0, 0]
            assert await cached(prompt, "one", **second) >= 48
        prompt = next(prompts)
        assert await cached(prompt, "one", cache_salt="a") == await cached(prompt, "two", cache_salt="a") == 0
        prompt = next(prompts)
        assert await cached(prompt, "one", cache_salt="public") == 0
        assert await cached(prompt, "two", cache_salt="public") >= 48


async def test_without_keys_everybody_is_one_client_but_a_salt_sets_apart(llama: Path) -> None:
    async with system(llama) as http:
        found = []
        for key, fields in (("one", {}), ("two", {}), ("one", {"cache_salt": "a"}), ("two", {"cache_salt": "a"})):
            usage = await complete(http, range(5, 70), bearer(key), max_tokens=1, **fields)
            found.append(usage["prompt_tokens_details"]["cached_tokens"] >= 48)
    assert found == [False, True, False, True]
