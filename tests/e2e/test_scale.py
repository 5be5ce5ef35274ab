"""The pool of workers grows and shrinks under load, and nobody notices."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.stacks import Processes
from tests.e2e.test_drain import wait_until_gone
from tests.e2e.test_processes import client_of, complete, wait_for_workers
from tests.redis_server import RedisServer

NUM_STREAMS = 8
NUM_TOKENS = 200


def test_from_one_worker_to_four_and_back_no_request_fails_and_no_text_changes(tiny_model: Path) -> None:
    with RedisServer() as redis, Processes(tiny_model, redis.url, None, "float32") as system:
        wait_for_workers(system, 2)
        assert system.terminate("worker-1") == 0
        client, ending = client_of(system), threading.Event()
        undisturbed = [complete(client, seed, NUM_TOKENS) for seed in range(NUM_STREAMS)]

        def load(seed: int) -> int:
            count = 0
            while not ending.is_set():
                assert complete(client, seed, NUM_TOKENS) == undisturbed[seed]
                count += 1
            return count

        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            loads = [pool.submit(load, seed) for seed in range(NUM_STREAMS)]
            try:
                for index in (1, 2, 3):
                    system.start_worker(f"worker-{index}")
                wait_for_workers(system, 4)
                while not all(worker.num_running for worker in system.describe().workers):
                    time.sleep(0.01)
                for index in (0, 1, 2):
                    assert system.terminate(f"worker-{index}") == 0
                    wait_until_gone(system, f"worker-{index}")
                # Each has come to the last worker, and gone on there.
                before = system.describe().workers[0].generation_tokens
                while system.describe().workers[0].generation_tokens < before + NUM_STREAMS * NUM_TOKENS:
                    assert not any(each.done() for each in loads)
                    time.sleep(0.02)
            finally:
                ending.set()
        assert all(each.result() > 0 for each in loads)
