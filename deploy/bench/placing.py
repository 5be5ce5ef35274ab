"""CPU time of choosing a lane for one request, beside that of the simplest rule there is."""

import time
from dataclasses import dataclass
from statistics import median

from augury.geometry import KvGroup
from augury.types import Generation, SamplingParams, StopParams
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.request import Request
from scheduler_svc.core.room import fits
from scheduler_svc.core.scheduler import Scheduler

BUDGET_MS = 0.3
NUM_LANES, NUM_REQUESTS, NUM_PROMPT = 64, 256, 1024
BLOCK_SIZE = 16
NUM_ROUNDS = 101


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Milliseconds for one request, the median: by cost, its prompt's keys included, and by the fewest requests."""

    cost_ms: float
    fewest_ms: float


def measure() -> Placing:
    """NUM_LANES lanes with NUM_REQUESTS requests each; each lane holds a part of another length of the prompt's start.

    Each round's request has a prompt of its own, whose first half all of them have in common.
    """
    lanes = [_lane(index) for index in range(NUM_LANES)]
    block_size, keys = lanes[0].names.prefix(_request(0))
    for index, lane in enumerate(lanes):
        lane.memory.learn(enumerate(keys[: index * len(keys) // NUM_LANES], 1))
    placement, cost_s, fewest_s = Placement(), list[float](), list[float]()
    for number in range(NUM_ROUNDS):
        request = _request(number)
        started = time.thread_time()
        chosen = placement.choose(lanes, request)
        placed = time.thread_time()
        fewest = min(lanes, key=lambda lane: (not fits(lane.config, request), lane.num_requests))
        fewest_s.append(time.thread_time() - placed)
        cost_s.append(placed - started)
        assert fewest is lanes[0] and chosen.memory.num_known(keys) * block_size >= NUM_PROMPT // 2
    return Placing(cost_ms=median(cost_s) * 1e3, fewest_ms=median(fewest_s) * 1e3)


def _lane(index: int) -> Scheduler:
    num_blocks = NUM_REQUESTS * NUM_PROMPT // BLOCK_SIZE
    config = LaneConfig(
        pool=f"worker-{index}",
        fingerprint="f",
        num_blocks=num_blocks,
        groups=(KvGroup(block_size=BLOCK_SIZE),),
        max_model_len=2 * NUM_PROMPT,
        max_batched_tokens=512,
        max_running=NUM_REQUESTS,
    )
    lane = Scheduler(config, epoch=1, num_available=num_blocks // 2)
    for number in range(NUM_REQUESTS):
        lane.submit(_request(number, num_prompt=BLOCK_SIZE))
    return lane


def _request(number: int, num_prompt: int = NUM_PROMPT) -> Request:
    half = num_prompt // 2
    prompt = (*range(half), *range(number, number + num_prompt - half))
    stopping = StopParams(max_tokens=128)
    generation = Generation(request_id="", prompt=prompt, sampling=SamplingParams(), stopping=stopping)
    return Request(handle=number, generation=generation, arrival=number)
