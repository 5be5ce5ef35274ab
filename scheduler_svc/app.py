"""Puts the scheduler together from settings."""

from dataclasses import dataclass
from functools import partial

import grpc

from augury import rpc
from augury.config import Settings
from augury.types import WorkerInfo
from augury.v1.scheduler_pb2_grpc import add_SchedulerServicer_to_server, add_WorkersServicer_to_server
from scheduler_svc.core.lane import KeyLookahead, LaneConfig
from scheduler_svc.core.policy import Policy
from scheduler_svc.service import SchedulerService


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerApp:
    listener: rpc.Listener
    kvcache: grpc.aio.Channel
    service: SchedulerService

    @property
    def address(self) -> str:
        return self.listener.address

    async def drain(self) -> None:
        """Return once every request has ended, those that wait for a worker at once; their gateways know others."""
        await self.listener.set_ready(False)
        await self.service.drain()

    async def stop(self, grace_s: float) -> None:
        await self.listener.stop(grace_s)
        await self.kvcache.close()


def lane_config(settings: Settings, info: WorkerInfo) -> LaneConfig:
    return LaneConfig(
        pool=info.worker_id,
        fingerprint=info.fingerprint,
        num_blocks=info.num_blocks,
        groups=info.groups,
        max_model_len=info.max_model_len,
        max_batched_tokens=settings.scheduler.max_batched_tokens,
        max_running=settings.scheduler.max_running,
        policy=Policy(settings.scheduler.policy),
        prefix_caching=settings.kv.prefix_caching,
        key_lookahead=KeyLookahead(settings.kv.key_lookahead),
        num_prefill_lookahead=info.num_prefill_lookahead,
        max_drafts=info.max_drafts,
        encoder_budget=info.encoder_budget,
        encoder_cache=info.encoder_cache,
    )


async def start(settings: Settings) -> SchedulerApp:
    """Serve at ``scheduler.address``, with the KV service at ``kvcache.address``. Raises OSError, ValueError."""
    kvcache = rpc.connect(settings.kvcache.address)
    service = SchedulerService(partial(lane_config, settings), kvcache, rpc.connect, settings.scheduler)
    listener = await rpc.listen(
        settings.scheduler.address,
        partial(add_SchedulerServicer_to_server, service),
        partial(add_WorkersServicer_to_server, service),
    )
    return SchedulerApp(listener=listener, kvcache=kvcache, service=service)
