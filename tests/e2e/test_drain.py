"""Services that are told to end, hang, fall silent or are killed under load: no request fails and no text changes."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.stacks import Processes
from tests.e2e.test_processes import client_of, complete, wait_for_workers
from tests.redis_server import RedisServer

NUM_STREAMS = 6
NUM_TOKENS = 450


@pytest.fixture
def tiny(tiny_model: Path) -> Iterator[Processes]:
    """The random model on two workers."""
    with RedisServer() as redis, Processes(tiny_model, redis.url, None, "float32") as system:
        wait_for_workers(system, 2)
        yield system


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        yield pool


def alone(system: Processes) -> list[str]:
    """The texts of all streams, one after another."""
    return [complete(client_of(system), seed, NUM_TOKENS) for seed in range(NUM_STREAMS)]


def begin(system: Processes, pool: ThreadPoolExecutor, num_workers: int) -> list[Future[str]]:
    """Streams that run, on ``num_workers`` workers."""
    client = client_of(system)
    texts = [pool.submit(complete, client, seed, NUM_TOKENS) for seed in range(NUM_STREAMS)]
    while sum(worker.num_running > 0 for worker in system.describe().workers) < num_workers:
        time.sleep(0.01)
    return texts


def wait_until_gone(system: Processes, worker_id: str) -> None:
    deadline = time.monotonic() + 20
    while any(worker.worker_id == worker_id for worker in system.describe().workers):
        assert time.monotonic() < deadline, f"{worker_id} did not go"
        time.sleep(0.02)


def test_workers_that_are_told_to_end_hand_over_or_finish_what_they_have(
    tiny: Processes, pool: ThreadPoolExecutor
) -> None:
    undisturbed = alone(tiny)
    texts = begin(tiny, pool, 2)
    tiny.running["worker-0"].popen.send_signal(signal.SIGTERM)
    wait_until_gone(tiny, "worker-0")
    assert not any(text.done() for text in texts), "the streams ended too early to show anything"
    assert tiny.running["worker-0"].popen.wait(10) == 0
    assert [text.result() for text in texts] == undisturbed
    assert [pool.pool for pool in tiny.inspect().pools] == ["worker-1"]
    texts = begin(tiny, pool, 1)
    assert tiny.terminate("worker-1") == 0
    assert [text.result(1) for text in texts] == undisturbed
    assert not tiny.describe().workers


def test_a_worker_that_stands_still_is_given_up_and_comes_back_when_it_wakes(
    tiny: Processes, pool: ThreadPoolExecutor
) -> None:
    undisturbed = alone(tiny)
    texts = begin(tiny, pool, 2)
    still = tiny.running["worker-0"].popen
    still.send_signal(signal.SIGSTOP)
    try:
        wait_until_gone(tiny, "worker-0")
        assert [text.result() for text in texts] == undisturbed
    finally:
        still.send_signal(signal.SIGCONT)
    wait_for_workers(tiny, 2)
    texts = begin(tiny, pool, 2)
    assert [text.result() for text in texts] == undisturbed


def test_a_scheduler_that_is_told_to_end_finishes_its_requests_and_leaves_later_ones_to_the_next(
    tiny: Processes, pool: ThreadPoolExecutor
) -> None:
    undisturbed = alone(tiny)
    texts = begin(tiny, pool, 2)
    scheduler = tiny.running["scheduler_svc"].popen
    scheduler.send_signal(signal.SIGTERM)
    while any(worker.ready for worker in tiny.describe().workers):
        time.sleep(0.01)
    with ThreadPoolExecutor(1) as late:
        later = late.submit(complete, client_of(tiny), 0, NUM_TOKENS)
        assert [text.result() for text in texts] == undisturbed
        assert scheduler.wait(20) == 0
        assert not later.done()
        tiny.restart("scheduler_svc")
        assert later.result() == undisturbed[0]


def test_a_kv_service_that_is_told_to_end_is_waited_for(tiny: Processes, pool: ThreadPoolExecutor) -> None:
    undisturbed = alone(tiny)
    client, ending = client_of(tiny), threading.Event()

    def load(seed: int) -> None:
        while not ending.is_set():
            assert complete(client, seed, NUM_TOKENS) == undisturbed[seed]

    loads = [pool.submit(load, seed) for seed in range(NUM_STREAMS)]
    while not all(worker.num_running for worker in tiny.describe().workers):
        time.sleep(0.01)
    assert tiny.terminate("kvcache_svc") == 0
    before = sum(worker.generation_tokens for worker in tiny.describe().workers)
    tiny.restart("kvcache_svc")
    while sum(worker.generation_tokens for worker in tiny.describe().workers) < before + NUM_STREAMS * NUM_TOKENS:
        assert not any(each.done() for each in loads), [each.exception() for each in loads if each.done()]
        time.sleep(0.05)
    ending.set()
    for each in loads:
        each.result()


def test_a_killed_scheduler_costs_its_clients_a_pause(tiny: Processes, pool: ThreadPoolExecutor) -> None:
    undisturbed = alone(tiny)
    texts = begin(tiny, pool, 2)
    tiny.running["scheduler_svc"].kill()
    assert not any(text.done() for text in texts), "the streams ended too early to show anything"
    tiny.restart("scheduler_svc")
    assert [text.result() for text in texts] == undisturbed
