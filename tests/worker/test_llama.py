"""The decoder says what Hugging Face transformers says, for every form of checkpoint it accepts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from augury.types import SamplingParams, StopParams
from tests.worker.driver import Driver
from tests.worker.tiny import BLOCK_SIZE, VOCAB_SIZE, save_llama
from worker_svc.attention import make_attention
from worker_svc.batch import Span, make_batch
from worker_svc.engine import Engine, EngineOptions
from worker_svc.kv import Kv
from worker_svc.model.description import read_architecture
from worker_svc.model.groups import make_layout
from worker_svc.model.llama import Llama
from worker_svc.model.weights import Checkpoint
from worker_svc.sampling import Draw, sample

torch.set_num_threads(1)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FORMS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "every head its own KV": {"num_key_value_heads": 4},
    "one KV head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 20},
    "llama3 rope": {"rope_parameters": LLAMA3, "rms_norm_eps": 1e-5},
    "sharded": {"max_shard_size": "12KB"},
    "windows": {
        "num_hidden_layers": 4,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    },
    "windows everywhere": {"sliding_window": 5, "layer_types": ["sliding_attention"] * 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_logits_and_greedy_text_equal_transformers(form: str, tmp_path: Path) -> None:
    theirs = save_llama(tmp_path, **FORMS[form])
    prompt = tuple(torch.randint(0, VOCAB_SIZE, (70,), generator=torch.Generator().manual_seed(3)).tolist())
    for attention in ("reference", "cpu"):
        difference = logits(tmp_path, prompt, "float32", attention) - their_logits(theirs, prompt)
        assert difference.abs().max() < 1e-4
        assert greedy(tmp_path, prompt, 32, attention) == their_greedy(theirs, prompt, 32)


def test_reference_logits_are_the_same_to_the_bit_in_every_chunking(tmp_path: Path) -> None:
    save_llama(tmp_path, intermediate_size=1536)
    prompt = tuple(range(30))
    whole, *others = [logits(tmp_path, prompt, "float32", "reference", chunk) for chunk in (30, 1, 2, 7)]
    for other in others:
        assert torch.equal(other, whole)


def test_a_sampled_text_is_drawn_from_the_logits_of_transformers(tmp_path: Path) -> None:
    theirs = save_llama(tmp_path)
    sampling = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.3, presence_penalty=0.5, seed=42)
    prompt, stopping = (5, 6, 7, 8, 9), StopParams(max_tokens=24)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + stopping.max_tokens:
        draw = Draw(position=len(tokens), tokens=tokens, num_prompt=len(prompt), sampling=sampling, stopping=stopping)
        tokens += sample(their_logits(theirs, tuple(tokens))[-1:].clone(), [draw])
    driver = Driver(load(tmp_path, "cpu"), 1)
    driver.add(prompt, stopping.max_tokens, sampling)
    assert driver.finish() == [tokens[len(prompt) :]]


def test_bfloat16_rounds_no_more_than_transformers_does(tmp_path: Path) -> None:
    theirs = save_llama(tmp_path)
    prompt = tuple(range(40))
    exact = their_logits(theirs, prompt)
    their_error = their_logits(theirs.bfloat16(), prompt).float() - exact
    for attention in ("reference", "cpu"):
        error = logits(tmp_path, prompt, "bfloat16", attention) - exact
        assert 0 < error.std() < 1.2 * their_error.std()


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    save_llama(tmp_path, max_shard_size="12KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[-1]
    shard.unlink()
    with pytest.raises(ValueError, match=shard.name):
        Engine.load(tmp_path, EngineOptions())


def test_weights_that_the_config_does_not_explain_are_refused(tmp_path: Path) -> None:
    save_llama(tmp_path, attention_bias=True)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"attention_bias": true', '"attention_bias": false'))
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.k_proj\.bias"):
        Engine.load(tmp_path, EngineOptions())


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 48', '"intermediate_size": 44'))
    with pytest.raises(ValueError, match=r"gate_proj.*\(48, 32\).*\(44, 32\)"):
        Engine.load(tmp_path, EngineOptions())


def logits(path: Path, prompt: tuple[int, ...], dtype: str, attention: str, chunk_size: int = 7) -> torch.Tensor:
    """[len(prompt), vocab] what follows each token, computed in chunks."""
    architecture, torch_dtype = read_architecture(path), getattr(torch, dtype)
    model = Llama(architecture, Checkpoint(path, torch_dtype), 256)
    kv = Kv(architecture, make_layout(architecture, 0, BLOCK_SIZE, hybrid=False), torch_dtype, 64)
    blocks = list(range(63, 63 - len(prompt), -1))
    kv.claim(blocks)
    rows = []
    for start in range(0, len(prompt), chunk_size):
        chunk = prompt[start : start + chunk_size]
        span = Span(start=0, num_new=len(chunk), num_context=start + len(chunk), blocks=[blocks], num_logits=1)
        batch = make_batch([chunk], [span], BLOCK_SIZE)
        hidden = model.forward(batch, kv, make_attention(attention).prepare([span], BLOCK_SIZE))
        rows.append(model.logits(model.norm(hidden)))
    return torch.cat(rows)


def their_logits(model: Any, prompt: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        values: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return values


def load(path: Path, attention: str) -> Engine:
    options = EngineOptions(dtype="float32", block_size=BLOCK_SIZE, num_blocks=64, attention=attention)
    return Engine.load(path, options)


def greedy(path: Path, prompt: tuple[int, ...], num_tokens: int, attention: str) -> list[int]:
    driver = Driver(load(path, attention), 1, poisons=True)
    driver.add(prompt, num_tokens, SamplingParams(temperature=0))
    return driver.finish()[0]


def their_greedy(model: Any, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
