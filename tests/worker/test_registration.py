"""A worker finds a scheduler as long as there is one."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from augury import rpc
from augury.geometry import KvGroup
from augury.types import WorkerInfo
from augury.v1 import scheduler_pb2 as pb
from augury.v1 import scheduler_pb2_grpc as pb_grpc
from worker_svc.registration import keep_registered


def info(name: str) -> WorkerInfo:
    return WorkerInfo(
        worker_id=name,
        incarnation="i",
        address="nowhere",
        model="m",
        fingerprint="f",
        num_blocks=2,
        groups=(KvGroup(block_size=4),),
        max_model_len=4,
        vocab_size=9,
    )


class Registry:
    """Remembers which workers came; lets them stay."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.came = asyncio.Event()

    async def serve(self, address: str) -> rpc.Listener:
        base: Any = pb_grpc.WorkersServicer
        servicer = base()
        servicer.Register = self._register
        return await rpc.listen(address, partial(pb_grpc.add_WorkersServicer_to_server, servicer))

    async def _register(self, requests: Any, context: Any) -> AsyncIterator[pb.WorkerOrders]:
        self.names.append((await anext(aiter(requests))).hello.worker_id)
        yield pb.WorkerOrders(registered=True)
        self.came.set()
        async for _ in requests:
            pass


async def test_a_worker_goes_on_to_the_next_scheduler_where_one_is_gone(tmp_path: Path) -> None:
    addresses = [f"unix:{tmp_path}/{name}" for name in "ab"]
    registries = [Registry(), Registry()]
    listeners = [await registry.serve(address) for registry, address in zip(registries, addresses, strict=True)]
    channels = [rpc.connect(address) for address in addresses]
    task = asyncio.create_task(keep_registered(info("w"), channels, asyncio.Event()))
    waits = [asyncio.create_task(registry.came.wait()) for registry in registries]
    done, _ = await asyncio.wait(waits, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    (first,) = map(waits.index, done)
    assert registries[1 - first].names == []
    await listeners[first].stop(0)
    await asyncio.wait_for(registries[1 - first].came.wait(), 10)
    assert registries[1 - first].names == ["w"]
    task.cancel()
    for channel in channels:
        await channel.close()
    await listeners[1 - first].stop(0)


async def test_workers_spread_over_the_schedulers(tmp_path: Path) -> None:
    addresses = [f"unix:{tmp_path}/{name}" for name in "ab"]
    registries = [Registry(), Registry()]
    listeners = [await registry.serve(address) for registry, address in zip(registries, addresses, strict=True)]
    channels = [rpc.connect(address) for address in addresses]
    names = [f"worker-{index}" for index in range(2)]
    tasks = [asyncio.create_task(keep_registered(info(name), channels, asyncio.Event())) for name in names]
    async with asyncio.timeout(10):
        for registry in registries:
            await registry.came.wait()
    for task in tasks:
        task.cancel()
    for channel in channels:
        await channel.close()
    for listener in listeners:
        await listener.stop(0)
