"""Text from a small model in training: every token by a pass over the whole text, so without KV."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from worker_svc.sampling import race
from worker_svc.training.base import Base
from worker_svc.training.corpus import Text


@torch.inference_mode()
def write(base: Base, prompts: Sequence[Sequence[int]], temperature: float, end: int, max_tokens: int) -> list[Text]:
    """Continue each prompt until the token ``end`` or ``max_tokens`` in all. A text's seed is its index."""
    device = base.embed_tokens.weight.device
    token_ids = torch.arange(base.architecture.vocab_size, device=device)
    tokens = [list(prompt) for prompt in prompts]
    open_ = set(range(len(prompts)))
    while open_:
        rows = sorted(open_)
        length = max(len(tokens[row]) for row in rows)
        padded = torch.tensor([tokens[row] + [end] * (length - len(tokens[row])) for row in rows], device=device)
        positions = torch.tensor([len(tokens[row]) for row in rows], device=device)
        last_ne = base(padded)[torch.arange(len(rows), device=device), positions - 1]
        logits_nv = functional.linear(last_ne, base.embed_tokens.weight).float()
        temperatures = torch.full(positions.shape, temperature, device=device)
        drawn = race(logits_nv, temperatures, torch.tensor(rows, device=device), positions, token_ids)
        for row, token in zip(rows, drawn.tolist(), strict=True):
            tokens[row].append(token)
            if token == end or len(tokens[row]) == max_tokens:
                open_.remove(row)
    return [
        Text(index=index, tokens=tuple(row), num_prompt=len(prompt), temperature=temperature, seed=index)
        for index, (row, prompt) in enumerate(zip(tokens, prompts, strict=True))
    ]
