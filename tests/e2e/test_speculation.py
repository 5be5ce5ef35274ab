"""The real model with its MTP modules: what speculation may not change, and that it happens."""

import asyncio
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from augury.types import Generation, SamplingParams
from tests.e2e.stacks import InProcess, generation, in_process

NUM_TOKENS = 24
EXACT = ["model.dtype=float32", "worker.attention=reference", "worker.threads=1"]
TIGHT = ["kv.num_blocks=30", "scheduler.max_batched_tokens=20", "kv.block_size=8"]
QUESTIONS = ["Why do cats purr?", "Why do cats purr? Answer like a pirate.", "Tell me about bread.", "What is rust?"]
SAMPLED = SamplingParams(
    temperature=0.8,
    top_p=0.9,
    min_p=0.02,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    repetition_penalty=1.1,
    logit_bias={42: 2.0},
    seed=5,
)


@pytest.fixture(scope="module")
def wishes(smollm2_model: Path) -> list[Generation]:
    """Greedy and sampled, some prompts equal, some alike up to the middle of a block."""
    tokenizer = Tokenizer.from_file(str(smollm2_model / "tokenizer.json"))
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [tokenizer.encode(chat.format(each), add_special_tokens=False).ids for each in QUESTIONS]
    greedy = [generation(prompt, NUM_TOKENS) for prompt in (*prompts, prompts[0])]
    return greedy + [generation(prompt, NUM_TOKENS, SAMPLED) for prompt in prompts]


async def crowd(system: InProcess, wishes: list[Generation]) -> list[list[int]]:
    return await asyncio.gather(*map(system.tokens, wishes))


@pytest.fixture(scope="module")
def plain(smollm2_model: Path, wishes: list[Generation]) -> list[list[int]]:
    """Alone, without speculation, hits or chunks."""

    async def run() -> list[list[int]]:
        overrides = ["speculation.depth=0", "kv.prefix_caching=false", "kv.num_blocks=100"]
        async with in_process(smollm2_model, *overrides, *EXACT) as system:
            return [await system.tokens(wish) for wish in wishes]

    return asyncio.run(run())


@pytest.mark.parametrize("depth", ["0", "1", "3", "auto"])
async def test_text_does_not_depend_on_speculation_in_a_crowd(
    smollm2_model: Path, wishes: list[Generation], plain: list[list[int]], depth: str
) -> None:
    """Chunks, hits on shared beginnings, and a pool that forces preemption."""
    async with in_process(smollm2_model, f"speculation.depth={depth}", *EXACT, *TIGHT) as system:
        together = await crowd(system, wishes)
        again = await crowd(system, wishes[:2])
        worker = await system.worker()
    assert together == plain and again == plain[:2]
    assert worker.num_preemptions > 0 and worker.hit_tokens > 0
    assert (sum(worker.accepted_at) > 0) == (depth != "0")


async def test_hits_are_within_the_lookahead_of_those_without_speculation(
    smollm2_model: Path, wishes: list[Generation]
) -> None:
    """One after another on one trace: the keys of 3 modules cover 3 tokens more, at most one block of each prompt."""
    hits = []
    for depth in ("0", "3"):
        async with in_process(smollm2_model, f"speculation.depth={depth}", "kv.block_size=1", *EXACT) as system:
            for wish in (*wishes[:3], *wishes[:3]):
                await system.tokens(wish)
            hits.append((await system.worker()).hit_tokens)
    assert hits[0] - 6 * 3 <= hits[1] <= hits[0]
