"""The real model with its MTP modules: what speculation may not change, and that it happens."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from augury.types import Generation, SamplingParams
from tests.e2e.stacks import GREEDY, InProcess, generation, in_process
from tests.worker.tiny import VOCAB_SIZE, save_predictable

NUM_TOKENS = 14
EXACT = ["model.dtype=float32", "worker.attention=reference", "worker.threads=1"]
TIGHT = ["kv.num_blocks=16", "scheduler.max_batched_tokens=20", "kv.block_size=8"]
ROOMY = ["kv.num_blocks=200", "scheduler.max_batched_tokens=80", "kv.block_size=8"]
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
    """16, greedy and sampled, some prompts equal, some alike up to the middle of a block."""
    tokenizer = Tokenizer.from_file(str(smollm2_model / "tokenizer.json"))
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [tokenizer.encode(chat.format(each), add_special_tokens=False).ids for each in QUESTIONS]
    samplings = [GREEDY, SAMPLED, GREEDY, replace(SAMPLED, seed=6)]
    return [generation(prompt, NUM_TOKENS, sampling) for sampling in samplings for prompt in prompts]


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


@pytest.mark.parametrize(
    ("depth", "pool"),
    [("0", TIGHT), ("1", TIGHT), ("2", ROOMY), ("3", TIGHT), ("auto", ROOMY)],
    ids=["0, tight", "1, tight", "2, roomy", "3, tight", "auto, roomy"],
)
async def test_text_does_not_depend_on_speculation_in_a_crowd(
    smollm2_model: Path, wishes: list[Generation], plain: list[list[int]], depth: str, pool: list[str]
) -> None:
    """Chunks, hits on shared beginnings, and a pool that forces preemption or one that holds all 16 at a time."""
    async with in_process(smollm2_model, f"speculation.depth={depth}", *EXACT, *pool) as system:
        together = await crowd(system, wishes)
        again = await crowd(system, wishes[:2])
        worker = await system.worker()
    assert together == plain and again == plain[:2]
    assert (worker.num_preemptions > 0) == (pool is TIGHT) and worker.hit_tokens > 0
    assert (sum(worker.accepted_at) > 0) == (depth != "0")


@pytest.fixture(scope="module")
def trace() -> list[tuple[int, ...]]:
    """Prompts that were asked before, that part from an earlier one anywhere, and that go on after it."""
    rng, prompts = random.Random(3), [tuple(range(5, 45))]
    for _ in range(14):
        earlier = rng.choice(prompts)
        own = rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 9))
        prompts.append((*earlier[: rng.randint(1, len(earlier))], *own))
    return [*prompts, *prompts[:4]]


@pytest.fixture(scope="module")
def chained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny, with three modules whose drafts are often accepted."""
    folder = tmp_path_factory.mktemp("chained")
    save_predictable(folder, 3, memory=0.03)
    return folder


async def hits(folder: Path, trace: list[tuple[int, ...]], *settings: str) -> list[int]:
    """Tokens that each prompt of the trace need not compute, one after another; every other goes on after its reply."""
    found = []
    async with in_process(folder, *EXACT, "kv.num_blocks=4000", *settings) as system:
        for prompt in trace:
            before = (await system.worker()).hit_tokens
            reply = await system.tokens(generation(prompt, 9))
            await system.tokens(generation((*prompt, *reply, 1, 2), 2))
            found.append((await system.worker()).hit_tokens - before)
    return found


@pytest.mark.parametrize("block_size", [1, 4])
async def test_hits_are_within_the_lookahead_of_those_without_speculation(
    chained_model: Path, trace: list[tuple[int, ...]], block_size: int
) -> None:
    """To the token; in blocks, a lookahead that ends inside one costs it whole. Of both questions of a prompt."""
    block = f"kv.block_size={block_size}"
    without = await hits(chained_model, trace, block, "speculation.depth=0")
    assert sum(without) > sum(map(len, trace))
    for depth, lookahead in {"1": 1, "2": 2, "3": 3, "auto": 3}.items():
        lost = -(-lookahead // block_size) * block_size
        for plain, found in zip(
            without, await hits(chained_model, trace, block, f"speculation.depth={depth}"), strict=True
        ):
            assert plain - 2 * lost <= found <= plain
