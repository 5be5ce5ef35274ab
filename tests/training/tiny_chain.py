"""A tiny base with random weights, modules for it, and texts of random tokens."""

import random
from typing import Any

import torch
from torch import nn

from worker_svc.model.description import Architecture, parse_architecture
from worker_svc.training.base import Base
from worker_svc.training.chain import Chain
from worker_svc.training.corpus import Text
from worker_svc.training.distill import Example, Frozen
from worker_svc.training.hidden import hidden_states

NUM_MODULES = 3


def architecture(vocab_size: int = 50, **changes: Any) -> Architecture:
    values = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    return parse_architecture(values | changes)


def random_base(a: Architecture) -> Base:
    base = Base(a)
    for parameter in base.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)
    return base.requires_grad_(False).eval()


def random_chain(a: Architecture, windows: tuple[int | None, ...] = (None,) * NUM_MODULES) -> Chain:
    chain = Chain(a, windows)
    for parameter in chain.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)
    return chain.eval()


def random_text(index: int, length: int, num_prompt: int, vocab_size: int, temperature: float = 0.0) -> Text:
    tokens = tuple(random.Random(index).choices(range(vocab_size), k=length))
    return Text(index=index, tokens=tokens, num_prompt=num_prompt, temperature=temperature, seed=index)


def examples_of(base: Base, texts: list[Text]) -> list[Example]:
    hidden = hidden_states(base, texts)
    return [Example(text=text, hidden_te=h_te) for text, h_te in zip(texts, hidden, strict=True)]


def all_tokens(base: Base) -> Frozen:
    embedding = base.embed_tokens.weight.detach()
    return Frozen.of(embedding, torch.arange(len(embedding)))
