"""How many drafts a base accepts: measured along texts that it wrote.

A module's draft is accepted iff all before it were, and then its input is the text itself. So the drafts at every row
of the text, computed at once from the text, say what a server's decode loop would accept from any position on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from worker_svc.sampling import race, signed
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


def starts(text: Text, depth: int) -> range:
    """Where a step of decoding may begin that proposes ``depth`` tokens: the prompt's first answer token is known, and
    the proposed ones lie within the answer."""
    return range(text.num_prompt + 1, len(text.tokens) - depth + 1)


@torch.inference_mode()
def module_drafts(chain: Chain, frozen: Frozen, example: Example) -> Tensor:
    """[S, N] what the modules propose at each of ``starts``.

    Drawn as the worker draws drafts: at the text's temperature, with the noise of its seed and the position.
    """
    text, depth, device = example.text, len(chain), frozen.draft_ids_d.device
    first_s = torch.tensor(starts(text, depth), dtype=torch.int64, device=device)
    temperatures = torch.full(first_s.shape, text.temperature, device=device)
    seeds = signed([text.seed]).to(device).expand(first_s.shape)
    batch = make_batch([example], frozen, depth)
    drafts = []
    for m, g_bre in enumerate(chain.eval()(batch.hidden_bte, batch.embedding_bte, depth)):
        logits_sd = functional.linear(g_bre[0, first_s - 2], frozen.head_de)
        columns = race(logits_sd, temperatures, seeds, first_s + m, frozen.draft_ids_d)
        drafts.append(frozen.draft_ids_d[columns])
    return torch.stack(drafts, 1).cpu()


def measure_modules(chain: Chain, frozen: Frozen, examples: Sequence[Example]) -> Acceptance:
    """The acceptance of the modules' drafts on the examples' answers."""
    right: list[Tensor] = []
    lengths: list[int] = []
    for example in examples:
        text, begin = example.text, starts(example.text, len(chain)).start
        drafts_sn = module_drafts(chain, frozen, example)
        tokens_sn = torch.tensor(text.tokens[begin:]).unfold(0, len(chain), 1) if len(drafts_sn) else drafts_sn
        right.append(drafts_sn == tokens_sn)
        proposals = drafts_sn.tolist()
        lengths += accepted_lengths(text, len(chain), partial(_entry, proposals, begin))
    return _acceptance(torch.cat(right).float().mean(0).tolist(), lengths, len(chain))


def measure_lookup(examples: Sequence[Example], depth: int) -> Acceptance:
    """The acceptance of prompt lookup: what followed the last three tokens when they last occurred."""
    lengths = []
    for example in examples:
        lengths += accepted_lengths(example.text, depth, partial(_looked_up, example.text.tokens, depth))
    return _acceptance([], lengths, depth)


def _entry(proposals: Sequence[Sequence[int]], begin: int, at: int) -> Sequence[int]:
    return proposals[at - begin]


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
    """Each step's number of accepted drafts, when the answer is decoded from its first token on."""
    lengths = []
    begin = starts(text, depth)
    at = begin.start
    while at in begin:
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
