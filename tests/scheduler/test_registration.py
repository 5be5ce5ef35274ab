"""Workers that the scheduler's settings cannot serve."""

from collections.abc import AsyncIterator
from functools import partial
from typing import cast

import pytest

from augury import convert, rpc
from augury.config import load
from augury.errors import InvalidRequestError
from augury.geometry import KvGroup
from augury.types import WorkerInfo
from augury.v1 import scheduler_pb2
from scheduler_svc.app import lane_config
from scheduler_svc.service import Context, SchedulerService

INFO = WorkerInfo(
    worker_id="w",
    incarnation="i",
    address="local:w",
    model="m",
    fingerprint="f",
    num_blocks=9,
    groups=(KvGroup(block_size=16, has_drafts=True),),
    max_model_len=32,
    vocab_size=9,
    num_prefill_lookahead=8,
    max_drafts=8,
)


async def hello() -> AsyncIterator[scheduler_pb2.WorkerReport]:
    yield scheduler_pb2.WorkerReport(hello=convert.hello_to_wire(INFO))


@pytest.mark.parametrize("setting", ["kv.key_lookahead=off", "scheduler.max_batched_tokens=16"])
async def test_a_worker_that_cannot_be_served_is_told_which_setting_is_in_its_way(setting: str) -> None:
    service = SchedulerService(partial(lane_config, load(overrides=[setting])), rpc.connect("local:kv"), rpc.connect)
    with pytest.raises(InvalidRequestError, match=setting.partition("=")[0]):
        await anext(service.Register(hello(), cast(Context, None)))
