"""How many drafts a base accepts: measured along texts that it wrote.

A module's draft is accepted iff all before it were, and then its input is the text itself. So the drafts at every row
of the text, computed at once from the text, say what a server's decode loop would accept from any position on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from worker_svc.sampling import exponential_noise
from worker_svc.training.chain import Chain
from worker_svc.training.corpus import Text
from worker_svc.training.distill import Example, Frozen, make_batch

_NGRAM = 3

Drafter = Callable[[int], Sequence[int]]
"""The drafts for the tokens from a position on, given all tokens before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """``agreement`` is each module's share of right drafts where its input is the text; ``reached`` the share of steps
    that accepted a draft at this depth; ``mean_accepted`` counts drafts per step."""

    agreement: tuple[float, ...]
    reached: tuple[float, ...]
    num_steps: int

    @property
    def mean_accepted(self) -> float:
        return sum(self.reached)


@torch.inference_mode()
def module_drafts(chain: Chain, frozen: Frozen, example: Example) -> Tensor:
    """[N, T] module m's draft for the token at each position; where it has none (the first m + 2), the null id 0.

    Drawn as a server does: with the noise of the request's seed and the position, at the text's temperature.
    """
    chain.eval()
    text = example.text
    length = len(text.tokens)
    batch = make_batch([example], frozen, len(chain))
    drafts = torch.zeros(len(chain), length, dtype=torch.int64)
    for m, g_bre in enumerate(chain(batch.hidden_bte, batch.embedding_bte, len(chain))):
        first = m + 2
        logits_rd = F.linear(g_bre[0, : length - first], frozen.head_de)
        for row in range(max(0, text.num_prompt - first), length - first):
            drafts[m, row + first] = _draw(logits_rd[row], frozen.draft_ids_d, text, row + first)
    return drafts


def _draw(logits_d: Tensor, ids_d: Tensor, text: Text, position: int) -> Tensor:
    if text.temperature > 0:
        noise_d = exponential_noise(text.seed, position, ids_d)
        return ids_d[((logits_d / text.temperature).softmax(-1) / noise_d).argmax()]
    return ids_d[logits_d.argmax()]


def measure_modules(chain: Chain, frozen: Frozen, examples: Sequence[Example]) -> Acceptance:
    """The acceptance of the modules' drafts on the examples' answers."""
    num_right, num_drafts, lengths = torch.zeros(len(chain)), 0, []
    for example in examples:
        text = example.text
        drafts = module_drafts(chain, frozen, example)
        judged = range(text.num_prompt + len(chain), len(text.tokens))
        num_right += (drafts == torch.tensor(text.tokens))[:, judged].sum(1)
        num_drafts += len(judged)
        lengths += accepted_lengths(text, len(chain), partial(_diagonal, drafts.tolist()))
    return _acceptance((num_right / max(1, num_drafts)).tolist(), lengths, len(chain))


def measure_lookup(examples: Sequence[Example], depth: int) -> Acceptance:
    """The acceptance of prompt lookup: what followed the last three tokens when they last occurred."""
    lengths = []
    for example in examples:
        lengths += accepted_lengths(example.text, depth, partial(_looked_up, example.text.tokens, depth))
    return _acceptance([], lengths, depth)


def _diagonal(drafts: Sequence[Sequence[int]], at: int) -> list[int]:
    return [row[at + m] for m, row in enumerate(drafts)]


def _looked_up(tokens: Sequence[int], depth: int, at: int) -> list[int]:
    return lookup(tokens[:at], depth)


def lookup(tokens: Sequence[int], depth: int) -> list[int]:
    """At most ``depth`` tokens after the latest earlier occurrence of the last three; none where there is none."""
    tail = tuple(tokens[-_NGRAM:])
    for end in range(len(tokens) - 1, _NGRAM - 1, -1):
        if tuple(tokens[end - _NGRAM : end]) == tail:
            return list(tokens[end : end + depth])
    return []


def accepted_lengths(text: Text, depth: int, drafter: Drafter) -> list[int]:
    """Each step's number of accepted drafts, when the answer is decoded from its first token on.

    A step at which ``depth`` more tokens no longer fit into the answer is left out.
    """
    lengths = []
    at = text.num_prompt + 1
    while at + depth <= len(text.tokens):
        num = _num_equal(drafter(at), text.tokens[at : at + depth])
        lengths.append(num)
        at += num + 1
    return lengths


def _num_equal(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    num = 0
    for draft, token in zip(drafts, tokens, strict=False):
        if draft != token:
            break
        num += 1
    return num


def _acceptance(agreement: Sequence[float], lengths: Sequence[int], depth: int) -> Acceptance:
    steps = max(1, len(lengths))
    reached = tuple(sum(length > m for length in lengths) / steps for m in range(depth))
    return Acceptance(agreement=tuple(agreement), reached=reached, num_steps=len(lengths))
