"""Text from a small model in training: every token by a pass over the whole text, so without KV."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from worker_svc.sampling import exponential_noise
from worker_svc.training.base import Base
from worker_svc.training.corpus import Text


@torch.inference_mode()
def write(base: Base, prompts: Sequence[Sequence[int]], temperature: float, end: int, max_tokens: int) -> list[Text]:
    """Continue each prompt until the token ``end`` or ``max_tokens`` in all. A text's seed is its index."""
    device = base.embed_tokens.weight.device
    tokens = [list(prompt) for prompt in prompts]
    open_ = set(range(len(prompts)))
    while open_:
        rows = sorted(open_)
        length = max(len(tokens[row]) for row in rows)
        padded = torch.tensor([tokens[row] + [end] * (length - len(tokens[row])) for row in rows], device=device)
        last = torch.tensor([len(tokens[row]) - 1 for row in rows], device=device)
        hidden_ne = base(padded)[torch.arange(len(rows), device=device), last]
        for row, logits in zip(rows, F.linear(hidden_ne, base.embed_tokens.weight).float(), strict=True):
            tokens[row].append(draw(logits, temperature, row, len(tokens[row])))
            if tokens[row][-1] == end or len(tokens[row]) == max_tokens:
                open_.remove(row)
    return [
        Text(index=index, tokens=tuple(row), num_prompt=len(prompt), temperature=temperature, seed=index)
        for index, (row, prompt) in enumerate(zip(tokens, prompts, strict=True))
    ]


def draw(logits: Tensor, temperature: float, seed: int, position: int) -> int:
    """The index of the winner of logits [V]: as the worker draws, with the noise of seed and position."""
    if temperature == 0:
        return int(logits.argmax())
    noise = exponential_noise(seed, position, torch.arange(len(logits), device=logits.device))
    return int(((logits / temperature).softmax(-1) / noise).argmax())
