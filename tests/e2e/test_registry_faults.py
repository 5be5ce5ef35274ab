"""Processes under a load of shared prefixes: Redis fails in every way, the KV service is killed, and nobody notices."""

import asyncio
import gc
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from redis import Redis

from deploy import cli
from kvcache_svc.core.coordinator import Coordinator
from tests.e2e.stacks import Processes, generation, in_process
from tests.redis_server import RedisServer

NUM_PREFIXES = 4
NUM_TOKENS, LONG = 12, 80
NUM_MEASURED = 60
"""Requests over which a hit rate is taken: one that misses its prefix lowers it by 1.5 points."""
PREFIX_WORDS = 40
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "stop", "here", "story", "END"]
RNG = random.Random(4)
PREFIXES = [" ".join(RNG.choices(WORDS, k=PREFIX_WORDS)) for _ in range(NUM_PREFIXES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    num_prompt: int
    num_cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The services, and Redis whose state is theirs alone."""

    services: Processes
    redis: RedisServer

    def ask(self, number: int, num_tokens: int = NUM_TOKENS) -> Answer:
        """The answer to the request of this number: a shared prefix and an end of its own, of equal length for all."""
        end = f"{number:06}"[::-1]
        body = {
            "model": "tiny",
            "prompt": f"{PREFIXES[number % NUM_PREFIXES]} number {end}",
            "seed": number,
            "max_tokens": num_tokens,
            "ignore_eos": True,
        }
        reply = httpx.post(f"{self.services.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
        usage = reply["usage"]
        assert usage["completion_tokens"] == num_tokens
        return Answer(
            text=reply["choices"][0]["text"],
            num_prompt=usage["prompt_tokens"],
            num_cached=usage["prompt_tokens_details"]["cached_tokens"],
        )

    def registry(self) -> str:
        return self.services.inspect().registry

    def until_registry(self, status: str) -> None:
        deadline = time.monotonic() + 30
        while self.registry() != status:
            assert time.monotonic() < deadline, f"the registry is {self.registry()}, not {status}"
            time.sleep(0.1)

    def until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while num_ready(self.services) < 2:
            assert time.monotonic() < deadline, "the workers did not come"
            time.sleep(0.1)


def num_ready(services: Processes) -> int:
    try:
        return sum(worker.ready for worker in services.describe().workers)
    except grpc.RpcError:
        return 0


@pytest.fixture(scope="module")
def stack(tiny_model: Path) -> Iterator[Stack]:
    with RedisServer() as redis:
        settings = {"kv.num_blocks": "400", "worker.attention": "reference"}
        with Processes(tiny_model, redis.url, None, "float32", **settings) as services:
            running = Stack(services=services, redis=redis)
            running.until_ready()
            yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def hit_rate(answers: Sequence[Answer]) -> float:
    """In percent of prompt tokens."""
    return 100 * sum(answer.num_cached for answer in answers) / sum(answer.num_prompt for answer in answers)


def warm_up(stack: Stack, pool: ThreadPoolExecutor) -> None:
    """Until each prefix is found wherever it is placed: twice in a row by all of a round of requests.

    Requests of one prefix come together, so that they do not all fit the worker that has it.
    """
    num_clean = 0
    for start in range(100_000, 101_000, 100):
        numbers = sorted(range(start, start + 6 * NUM_PREFIXES), key=lambda number: number % NUM_PREFIXES)
        answers = list(pool.map(stack.ask, numbers))
        num_clean = num_clean + 1 if all(answer.num_cached for answer in answers) else 0
        if num_clean == 2:
            return
    raise AssertionError("prefixes are not found again")


def check_texts(
    stack: Stack, pool: ThreadPoolExecutor, numbers: range, answers: Sequence[Answer], num_tokens: int = NUM_TOKENS
) -> None:
    """Equal to those of a quiet moment."""
    again = pool.map(partial(stack.ask, num_tokens=num_tokens), numbers)
    assert [answer.text for answer in answers] == [answer.text for answer in again]


def epochs_of(stack: Stack) -> dict[str, int]:
    return {state.pool: state.epoch for state in stack.services.inspect().pools}


def kill_and_restart(services: Processes, *names: str) -> None:
    for name in names:
        services.running[name].kill()
    for name in names:
        services.restart(name)


def test_a_killed_kv_service_costs_no_request_no_text_and_no_hits(stack: Stack, pool: ThreadPoolExecutor) -> None:
    warm_up(stack, pool)
    before = list(pool.map(stack.ask, range(NUM_MEASURED)))
    epochs = epochs_of(stack)
    during = [pool.submit(stack.ask, number, LONG) for number in range(100, 124)]
    while sum(worker.num_running for worker in stack.services.describe().workers) < 4:
        time.sleep(0.005)
    kill_and_restart(stack.services, "kvcache_svc")
    assert not during[-1].done(), "the load ended too early"
    answers = [answer.result() for answer in during]
    after = list(pool.map(stack.ask, range(200, 200 + NUM_MEASURED)))
    print(f"hit rate {hit_rate(before):.1f} %, while killed {hit_rate(answers):.1f}, after {hit_rate(after):.1f}")
    assert hit_rate(before) > 50
    assert abs(hit_rate(after) - hit_rate(before)) < 5
    assert hit_rate(answers) > hit_rate(before) - 5
    check_texts(stack, pool, range(100, 124), answers, LONG)
    check_texts(stack, pool, range(200, 200 + NUM_MEASURED), after)
    assert epochs_of(stack) == epochs, "running requests kept their blocks: nobody was fenced"
    assert sum(state.num_adopted for state in stack.services.inspect().pools) > 0


def test_what_scheduler_and_kv_service_forgot_redis_remembers(stack: Stack, pool: ThreadPoolExecutor) -> None:
    warm_up(stack, pool)
    before = list(pool.map(stack.ask, range(300, 300 + NUM_MEASURED)))
    stack.until_registry("redis")
    time.sleep(0.5)
    kill_and_restart(stack.services, "kvcache_svc", "scheduler_svc")
    stack.until_ready()
    after = list(pool.map(stack.ask, range(400, 400 + NUM_MEASURED)))
    assert abs(hit_rate(after) - hit_rate(before)) < 5
    check_texts(stack, pool, range(400, 400 + NUM_MEASURED), after)


def test_stale_entries_in_redis_cost_time_and_change_no_text(stack: Stack, pool: ThreadPoolExecutor) -> None:
    """All entries of each pool name the block of another one."""
    warm_up(stack, pool)
    quiet = list(pool.map(stack.ask, range(500, 520)))
    stack.until_registry("redis")
    time.sleep(0.5)
    for name in ("kvcache_svc", "scheduler_svc"):
        stack.services.running[name].kill()
    with Redis.from_url(stack.redis.url) as redis:
        for registry in redis.scan_iter("*:registry"):
            entries = redis.hgetall(registry)
            blocks = list(entries.values())
            redis.hset(registry, mapping=dict(zip(entries, blocks[1:] + blocks[:1], strict=True)))
    for name in ("kvcache_svc", "scheduler_svc"):
        stack.services.restart(name)
    stack.until_ready()
    misled = list(pool.map(stack.ask, range(500, 520)))
    assert [answer.text for answer in misled] == [answer.text for answer in quiet]
    assert sum(worker.num_refused for worker in stack.services.describe().workers) > 0


async def test_stale_entries_in_memory_cost_time_and_change_no_text(tiny_model: Path) -> None:
    prompts = [[number, *range(10, 90)] for number in range(4, 8)]
    wishes = [generation(prompt, NUM_TOKENS) for prompt in prompts]
    async with in_process(tiny_model, "model.dtype=float32", "worker.attention=reference") as system:
        quiet = [await system.tokens(wish) for wish in wishes]
        while (await system.pool()).num_leases:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        epoch = (await system.pool()).epoch
        everything = (each for each in gc.get_objects() if type(each) is Coordinator)
        (pool,) = (each.pool for each in everything if each.spec.epoch == epoch)
        keys, blocks = list(pool._index), list(pool._index.values())
        for key in keys:
            pool.forget(key)
        pool.restore(dict(zip(keys, blocks[1:] + blocks[:1], strict=True)))
        assert [await system.tokens(wish) for wish in wishes] == quiet
        assert (await system.worker()).num_refused > 0


@pytest.mark.parametrize("harm", ["killed", "stopped", "flushed", "garbage"])
def test_whatever_redis_does_under_load_no_request_fails(stack: Stack, pool: ThreadPoolExecutor, harm: str) -> None:
    warm_up(stack, pool)
    stack.until_registry("redis")
    answers = [pool.submit(stack.ask, number) for number in range(600, 620)]
    do_harm(stack.redis, harm)
    if harm in ("killed", "stopped"):
        stack.until_registry("redis (degraded)")
    degraded = list(pool.map(stack.ask, range(700, 712)))
    assert hit_rate(degraded) > 50, "hits go on from memory"
    if harm == "killed":
        stack.redis.start()
    elif harm == "stopped":
        stack.redis.resume()
    stack.until_registry("redis")
    check_texts(stack, pool, range(600, 620), [answer.result() for answer in answers])
    deadline = time.monotonic() + 20
    while num_registered(stack.redis) < len(stack.services.inspect().pools):
        assert time.monotonic() < deadline, "the journal did not catch up"
        time.sleep(0.1)


def num_registered(server: RedisServer) -> int:
    """Pools whose entries are in Redis."""
    with Redis.from_url(server.url) as redis:
        return sum(redis.type(name) == b"hash" for name in redis.scan_iter("augury:v2:*:registry"))


def do_harm(server: RedisServer, harm: str) -> None:
    if harm == "killed":
        server.kill()
    elif harm == "stopped":
        server.pause()
    else:
        with Redis.from_url(server.url) as redis:
            for name in redis.scan_iter("*"):
                redis.delete(name)
                if harm == "garbage":
                    redis.rpush(name, "of", "another", "type")


def test_a_kv_service_that_starts_without_redis_serves_and_catches_up(stack: Stack, pool: ThreadPoolExecutor) -> None:
    warm_up(stack, pool)
    before = list(pool.map(stack.ask, range(800, 800 + NUM_MEASURED)))
    stack.redis.kill()
    kill_and_restart(stack.services, "kvcache_svc")
    after = list(pool.map(stack.ask, range(900, 900 + NUM_MEASURED)))
    assert abs(hit_rate(after) - hit_rate(before)) < 5, "the workers' tags are enough"
    assert stack.registry() == "redis (degraded)"
    stack.redis.start()
    stack.until_registry("redis")


def test_inspection_of_the_running_system(
    stack: Stack, pool: ThreadPoolExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    warm_up(stack, pool)
    assert cli.main(["kv", "inspect", "--address", stack.services.kvcache_address]) == 0
    shown = capsys.readouterr().out
    assert "registry: redis" in shown
    pools = stack.services.inspect(num_prefixes=1).pools
    hottest = max((prefix for state in pools for prefix in state.hottest), key=lambda prefix: prefix.num_hits)
    assert "worker-0" in shown and hottest.key.hex() in shown


def test_health_says_so_while_redis_is_away(stack: Stack) -> None:
    until_health(stack, {"status": "ok"})
    stack.redis.kill()
    try:
        until_health(stack, {"status": "degraded", "reasons": ["the KV registry is degraded"]})
    finally:
        stack.redis.start()
    until_health(stack, {"status": "ok"})


def until_health(stack: Stack, wanted: dict[str, object]) -> None:
    deadline = time.monotonic() + 20
    while (told := httpx.get(f"{stack.services.url}/health", timeout=10).raise_for_status().json()) != wanted:
        assert time.monotonic() < deadline, told
        time.sleep(0.1)
