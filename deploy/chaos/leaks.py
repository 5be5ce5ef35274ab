"""What services still hold once all requests have ended, and which of them have fallen."""

import time

import grpc

from deploy.chaos.stack import Stack

_SETTLE_SECONDS = 10.0


def wait_for_leaks(stack: Stack) -> list[str]:
    """What is held after it had time to be given back, in words; empty where that is nothing."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (held := _held(stack)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return held


def _held(stack: Stack) -> list[str]:
    if fallen := stack.fallen():
        return [f"{name} has ended by itself" for name in fallen]
    try:
        pools, descriptions = stack.inspection().pools, stack.descriptions()
    except grpc.RpcError as error:
        return [f"a service does not answer: {error}"]
    leaks = [
        f"pool {pool.pool}: {pool.num_leases} leases, {pool.num_open} open and {pool.num_sealed} sealed blocks"
        for pool in pools
        if pool.num_leases or pool.num_open or pool.num_sealed
    ]
    for description in descriptions:
        if description.num_parked:
            leaks.append(f"{description.num_parked} requests are parked")
        leaks.extend(
            f"{worker.worker_id}: {worker.num_running} running, {worker.num_waiting} waiting, "
            f"{worker.num_available} of {worker.num_blocks} blocks available"
            for worker in description.workers
            if worker.num_running or worker.num_waiting or worker.num_available != worker.num_blocks - 1
        )
    return leaks
