"""The worker's service tells what its sealed blocks hold, between steps."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from augury import convert, rpc
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams
from augury.v1 import worker_pb2
from augury.v1.worker_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from tests.worker.tiny import save_llama
from worker_svc.engine import Engine, EngineOptions
from worker_svc.service import WorkerService

KEYS = bytes([1]) * 16, bytes([2]) * 16


async def test_tags_are_those_of_the_steps_before(tmp_path: Path) -> None:
    save_llama(tmp_path)
    fresh = NewRequest(
        handle=1,
        tokens=tuple(range(10)),
        num_prompt=10,
        num_computed=0,
        blocks=((5, 6, 7),),
        hits=(),
        sampling=SamplingParams(),
        stopping=StopParams(max_tokens=4),
    )
    steps = [
        Step(epoch=1, seq=1, fresh=(fresh,), rows=(Row(handle=1, num_new=10),)),
        Step(epoch=1, seq=2, sealed=((5, KEYS[0]), (6, KEYS[1]))),
        Step(epoch=1, seq=3, fresh=(replace(fresh, handle=2, blocks=((6, 8, 9),)),)),
    ]
    with ThreadPoolExecutor(1) as executor:
        engine = Engine.load(tmp_path, EngineOptions(block_size=4, num_blocks=12))
        service = partial(add_WorkerServicer_to_server, WorkerService(engine, executor))
        listener = await rpc.listen("local:worker-tags", service)
        stub = WorkerStub(rpc.connect(listener.address))
        told = []
        for step in steps:
            async for _ in stub.Execute(_once(step)):
                pass
            told.append(convert.tags_from_wire(await stub.Tags(worker_pb2.TagsRequest())))
        await listener.stop(0)
    assert told == [[], [(5, KEYS[0]), (6, KEYS[1])], [(5, KEYS[0])]]


async def _once(step: Step) -> AsyncIterator[worker_pb2.Step]:
    yield convert.step_to_wire(step)
