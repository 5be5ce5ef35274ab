"""Each service a process of its own, with Redis, driven by the official openai client."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.e2e.stacks import Processes
from tests.redis_server import RedisServer

QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module", params=["tcp", "unix"])
def real(
    request: pytest.FixtureRequest, smollm2_model: Path, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    """SmolLM2 on two workers."""
    sockets = tmp_path_factory.mktemp("sockets") if request.param == "unix" else None
    with Processes(smollm2_model, redis.url, sockets, "bfloat16") as system:
        yield system


@pytest.fixture
def tiny(tiny_model: Path, redis: RedisServer) -> Iterator[Processes]:
    """The random model on two workers, for tests that end processes."""
    with Processes(tiny_model, redis.url, None, "float32") as system:
        yield system


def client_of(system: Processes) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{system.url}/v1", api_key="none", max_retries=0, timeout=120)


def complete(client: openai.OpenAI, seed: int, max_tokens: int = 200) -> str:
    """A text that never ends early."""
    answer = client.completions.create(
        model="tiny",
        prompt=f"the story {seed % 5} of",
        seed=seed,
        max_tokens=max_tokens,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None and answer.usage.completion_tokens == max_tokens
    return answer.choices[0].text


def wait_for_workers(system: Processes, count: int) -> None:
    deadline = time.monotonic() + 60
    while sum(worker.ready for worker in system.describe().workers) < count:
        assert time.monotonic() < deadline, "the workers did not come"
        time.sleep(0.1)


def test_the_openai_client_chats_streams_and_lists_models(real: Processes) -> None:
    client = client_of(real)
    assert [model.id for model in client.models.list()] == ["smollm2"]
    whole = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=24)
    stream = client.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=24, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len(pieces) > 2 and "".join(pieces) == whole.choices[0].message.content
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="another", messages=QUESTION)
    assert caught.value.code == "model_not_found" and caught.value.request_id


def test_a_client_that_leaves_frees_its_blocks(real: Processes) -> None:
    client = client_of(real)
    stream = client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=2000, stream=True)
    next(iter(stream))
    assert sum(pool.num_leases for pool in real.inspect().pools) == 1
    stream.close()
    left_at = time.monotonic()
    while any(pool.num_leases for pool in real.inspect().pools):
        assert time.monotonic() < left_at + 1, "a lease is held a second after its client left"
        time.sleep(0.02)


def test_both_workers_take_part(tiny: Processes) -> None:
    wait_for_workers(tiny, 2)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: complete(client_of(tiny), seed), range(8)))
    assert all(worker.generation_tokens > 0 for worker in tiny.describe().workers)


def test_redis_killed_and_restarted_under_load_fails_no_request(tiny: Processes, redis: RedisServer) -> None:
    client = client_of(tiny)
    wait_for_workers(tiny, 2)
    undisturbed = {seed: complete(client, seed) for seed in range(4)}
    ending = threading.Event()

    def load(seed: int) -> int:
        count = 0
        while not ending.is_set():
            assert complete(client, seed) == undisturbed[seed]
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        counts = [pool.submit(load, seed) for seed in range(4)]
        time.sleep(1)
        redis.kill()
        time.sleep(2)
        redis.start()
        time.sleep(2)
        ending.set()
        assert all(count.result() > 0 for count in counts)


@pytest.mark.parametrize("victim", ["worker-0", "kvcache_svc"])
def test_a_process_killed_under_load_changes_no_text(tiny: Processes, victim: str) -> None:
    client = client_of(tiny)
    wait_for_workers(tiny, 2)
    undisturbed = [complete(client, seed, 300) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        texts = [pool.submit(complete, client, seed, 300) for seed in range(6)]
        while not all(worker.num_running for worker in tiny.describe().workers):
            time.sleep(0.01)
        tiny.running[victim].kill()
        if victim == "kvcache_svc":
            tiny.restart(victim)
        assert [text.result() for text in texts] == undisturbed


def test_services_end_on_sigterm_with_status_zero(tiny: Processes) -> None:
    wait_for_workers(tiny, 2)
    names = ["gateway", "worker-0", "worker-1", "scheduler_svc", "kvcache_svc"]
    assert {name: tiny.terminate(name) for name in names} == dict.fromkeys(names, 0)
