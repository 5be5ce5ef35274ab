"""Many streams on a pool that cannot hold them all at once."""

import asyncio
import random
from pathlib import Path

from augury.types import Generation, SamplingParams
from tests.e2e.stacks import generation, in_process

NUM_STREAMS = 64
NUM_BLOCKS = 41


def wishes() -> list[Generation]:
    """Prompts of which half share a beginning; half are sampled."""
    rng = random.Random(11)
    shared = [rng.randrange(4, 400) for _ in range(21)]
    return [
        generation(
            (shared if index % 2 else []) + [rng.randrange(4, 400) for _ in range(rng.randrange(1, 40))],
            rng.randrange(20, 60),
            SamplingParams(temperature=0.8 if index % 4 < 2 else 0.0, seed=index),
        )
        for index in range(NUM_STREAMS)
    ]


async def test_every_stream_of_a_crowd_ends_with_the_text_it_has_alone(tiny_model: Path) -> None:
    overrides = ["model.dtype=float32", "worker.attention=reference", "scheduler.max_batched_tokens=48"]
    async with in_process(tiny_model, "kv.num_blocks=400", "kv.prefix_caching=false", *overrides) as system:
        alone = [await system.tokens(wish) for wish in wishes()]
    async with in_process(tiny_model, f"kv.num_blocks={NUM_BLOCKS}", *overrides) as system:
        together = await asyncio.gather(*map(system.tokens, wishes()))
        worker = await system.worker()
        await asyncio.sleep(0.2)
        pool = await system.pool()
    assert together == alone
    assert worker.num_preemptions > 0 and worker.hit_tokens > 0
    assert (pool.num_leases, pool.num_open, pool.num_sealed) == (0, 0, 0)
    assert pool.num_free + pool.num_cached == NUM_BLOCKS - 1
