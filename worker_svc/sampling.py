"""Drawing tokens: penalties, bias, filters, then a race whose noise depends on (seed, position, token id) only.

So neither batch, chunking nor device changes a text. N is the number of draws, V the vocabulary.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from augury.types import SamplingParams, StopParams
from worker_svc.device import CPU, upload

_MASK_64 = (1 << 64) - 1
# splitmix64's increment and multipliers (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_NUM_HEAD = 1024
"""Most likely tokens that are searched for top_p's edge before the whole vocabulary is sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One row of logits: the token at ``position`` of a request, given ``tokens[:position]``, is to be drawn."""

    position: int
    tokens: Sequence[int]
    num_prompt: int
    sampling: SamplingParams
    stopping: StopParams


class Reading(NamedTuple):
    """Of a row of logits: whether all are finite, and the id of the highest, on a tie the lowest id."""

    finite: bool
    highest: int


def read(logits: Tensor) -> list[Reading]:
    """What the host needs of ``logits`` [N, V] in any case, fetched at once."""
    columns = torch.stack([logits.sum(-1).isfinite(), logits.argmax(-1)], -1)
    return [Reading(finite=bool(finite), highest=highest) for finite, highest in columns.tolist()]


def takes_highest(draw: Draw) -> bool:
    """Whether ``sample`` draws the highest of the logits as they are."""
    sampling = draw.sampling
    edits = sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty
    return not (sampling.temperature > 0 or edits or sampling.logit_bias or _must_go_on(draw))


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token id for each of ``draws`` from float32 ``logits`` [N, V], which are changed in place.

    Temperature 0 takes the highest logit, on a tie the lowest id. Otherwise the logits pass top_k, top_p and min_p in
    this order; tokens that tie with a filter's last one stay.
    """
    for row, draw in zip(logits, draws, strict=True):
        _edit(row, draw)
    return [
        int(_draw(row, draw) if draw.sampling.temperature > 0 else row.argmax())
        for row, draw in zip(logits, draws, strict=True)
    ]


def exponential_noise(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """A float64 number from the exponential distribution of mean 1 for each of the int64 ``token_ids`` [...].

    A function of seed (modulo 2**64), position and token id alone: splitmix64's output number ``token_id`` of a stream
    that seed and position choose.
    """
    return _noise(signed([seed], token_ids.device), upload([position], token_ids.device), token_ids)


def race(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """[N] for each row of ``logits`` [N, V] the column that ``sample`` would draw at a temperature, without filters.

    ``temperatures`` (0 is greedy), ``seeds`` (as ``signed`` gives them) and ``positions`` are [N], ``token_ids`` [V].
    """
    winners = logits.argmax(-1)
    sampled = temperatures.nonzero().squeeze(-1)
    if len(sampled):
        winners[sampled] = noisy_race(
            logits[sampled], temperatures[sampled], seeds[sampled], positions[sampled], token_ids
        )
    return winners


def noisy_race(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """``race`` where no temperature is 0."""
    noise = _noise(seeds.unsqueeze(-1), positions.unsqueeze(-1), token_ids)
    return (logits.double() / temperatures.unsqueeze(-1) - noise.log()).argmax(-1)


def signed(values: Sequence[int], device: torch.device = CPU) -> Tensor:
    """[N] int64 of the same 64 bits as each of ``values``, modulo 2**64."""
    return upload([_signed(value) for value in values], device)


def _noise(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    streams = _mix(_mix(seeds) + positions * _signed(_GAMMA))
    bits = _shift(_mix(streams + token_ids * _signed(_GAMMA)), 12)
    return -((bits.double() + 0.5) * 2.0**-52).log()


def _edit(logits: Tensor, draw: Draw) -> None:
    """Penalties, logit_bias and min_tokens on one row [V], in place."""
    sampling, stopping = draw.sampling, draw.stopping
    if sampling.repetition_penalty != 1.0:
        seen = upload(sorted(set(draw.tokens[: draw.position])), logits.device)
        values = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = Counter(draw.tokens[draw.num_prompt : draw.position])
        penalties = {
            token: sampling.presence_penalty + sampling.frequency_penalty * count for token, count in counts.items()
        }
        _add(logits, penalties, -1)
    _add(logits, sampling.logit_bias, 1)
    if _must_go_on(draw):
        logits.index_fill_(0, upload(sorted(stopping.stop_token_ids), logits.device), -torch.inf)


def _must_go_on(draw: Draw) -> bool:
    """Whether min_tokens forbids the stop tokens."""
    stopping = draw.stopping
    return bool(stopping.stop_token_ids) and draw.position - draw.num_prompt < stopping.min_tokens


def _add(logits: Tensor, amounts: Mapping[int, float], sign: int) -> None:
    if amounts:
        token_ids = upload(list(amounts), logits.device)
        logits[token_ids] += sign * upload(list(amounts.values()), logits.device, torch.float32)


def _draw(logits: Tensor, draw: Draw) -> Tensor:
    """The winner of a race in which each token's time is exponential, with its probability as rate."""
    sampling = draw.sampling
    # The highest becomes 0, so that a tiny temperature cannot overflow.
    scores = (logits - logits.max()) / sampling.temperature
    token_ids = torch.arange(len(scores), device=scores.device)
    if sampling.top_k is not None and sampling.top_k < len(scores):
        scores, token_ids = _keep(scores, token_ids, scores.topk(sampling.top_k).values[-1])
    if sampling.top_p < 1:
        scores, token_ids = _keep(scores, token_ids, _top_p_floor(scores, sampling.top_p))
    if sampling.min_p > 0:
        scores, token_ids = _keep(scores, token_ids, math.log(sampling.min_p))
    noise = exponential_noise(sampling.seed, draw.position, token_ids)
    return token_ids.take((scores.softmax(-1) / noise).argmax())


def _keep(scores: Tensor, token_ids: Tensor, floor: Tensor | float) -> tuple[Tensor, Tensor]:
    """Those that score ``floor`` or more."""
    kept = (scores >= floor).nonzero().squeeze(-1)
    return scores[kept], token_ids[kept]


def _top_p_floor(scores: Tensor, top_p: float) -> Tensor:
    """The lowest score that stays: a token does if those more likely than it have less than ``top_p`` in all."""
    total = scores.double().exp().sum()
    for num_head in (min(_NUM_HEAD, len(scores)), len(scores)):
        head = scores.topk(num_head).values
        probabilities = head.double().exp() / total
        reached = probabilities.cumsum(-1)
        if reached[-1] >= top_p:
            break
    num_kept = int((reached - probabilities < top_p).sum())
    return head[max(num_kept, 1) - 1]


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser, a bijection of 64 bits (int64 products wrap around)."""
    x = (x ^ _shift(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_2)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, count: int) -> Tensor:
    """Logical shift to the right; torch's own copies the sign."""
    return (x >> count) & (_MASK_64 >> count)


def _signed(bits: int) -> int:
    """The int64 of the same 64 bits."""
    bits &= _MASK_64
    return bits - (1 << 64) if bits >> 63 else bits
