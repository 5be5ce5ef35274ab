"""The real model's text against Hugging Face transformers."""

import asyncio
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.e2e.stacks import generation, in_process

NUM_TOKENS = 64
QUESTIONS = [
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper and her cat.",
    "List five vegetables that grow well in winter.",
    "What is the capital of France, and what is it known for?",
    "def fibonacci(n): # complete this Python function",
]


@pytest.fixture(scope="module")
def prompts(smollm2_model: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(smollm2_model / "tokenizer.json"))
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(chat.format(question), add_special_tokens=False).ids for question in QUESTIONS]


@pytest.fixture(scope="module")
def theirs(smollm2_model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates in float32, greedily and past the end of the answer."""
    model = AutoModelForCausalLM.from_pretrained(smollm2_model, dtype=torch.float32)
    options = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        return [model.generate(torch.tensor([ids]), **options)[0, len(ids) :].tolist() for ids in prompts]


async def test_greedy_text_equals_transformers_alone(
    smollm2_model: Path, prompts: list[list[int]], theirs: list[list[int]]
) -> None:
    async with in_process(smollm2_model, "model.dtype=float32", "kv.num_blocks=200") as system:
        ours = [await system.tokens(generation(prompt, NUM_TOKENS)) for prompt in prompts]
    assert ours == theirs


async def test_greedy_text_equals_transformers_in_a_crowded_batch(
    smollm2_model: Path, prompts: list[list[int]], theirs: list[list[int]]
) -> None:
    """Sixteen at once: prompts in chunks, prefix hits, and a pool that forces preemption."""
    tight = ["kv.num_blocks=48", "scheduler.max_batched_tokens=24", "kv.block_size=8"]
    async with in_process(smollm2_model, "model.dtype=float32", *tight) as system:
        order = [index % len(prompts) for index in range(16)]
        ours = await asyncio.gather(*(system.tokens(generation(prompts[index], NUM_TOKENS)) for index in order))
        worker = await system.worker()
    assert ours == [theirs[index] for index in order]
    assert worker.num_preemptions > 0 and worker.hit_tokens > 0
