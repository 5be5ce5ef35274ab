"""Runs the MTP modules over rows of many requests at once: writes their KV and chains drafts.

Passes that only write KV stand first, then those that draft, deepest first. So what a module needs of the passes that
are still on is the front part of what the module before it had.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from worker_svc.attention.port import Attention
from worker_svc.batch import Span, slots
from worker_svc.device import upload
from worker_svc.kv import Kv
from worker_svc.model.llama import Llama
from worker_svc.model.mtp import Modules, Queries, Rows
from worker_svc.model.policy import ChainKind
from worker_svc.requests import Held
from worker_svc.sampling import noisy_race, signed

_FEW_ROWS = 8
"""So few rows cost a module no more than the last one alone, for which queries would have to be laid out anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One request's rows ``start`` to ``end - 1`` through ``num_runs`` modules (or runs of the one that feeds itself).

    ``hidden`` [end - start, E] is what modules read of the target. If ``num_drafts`` are wanted, each run drafts a
    token from the last row, which is that of the last known token but one; if none, ``num_runs`` tokens after the last
    row are known, and KV is all there is to write.
    """

    request: Held
    start: int
    end: int
    num_runs: int
    num_drafts: int
    hidden: Tensor

    @property
    def num_rows(self) -> int:
        return self.end - self.start

    @property
    def drafting(self) -> bool:
        return self.num_drafts > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked of a module: outputs at the ``queries``, and drafts from those of them at ``heads`` [D]."""

    queries: Queries
    heads: Tensor


class _Draws:
    """How the drafting ones of ``passes`` draw."""

    def __init__(self, passes: Sequence[Pass], device: torch.device) -> None:
        requests = [p.request for p in passes if p.drafting]
        self._places = [place for place, request in enumerate(requests) if request.sampling.temperature > 0]
        sampled = [requests[place] for place in self._places]
        self._rows = upload(self._places, device)
        self._temperatures = upload([request.sampling.temperature for request in sampled], device, torch.float32)
        self._seeds = signed([request.sampling.seed for request in sampled], device)
        self._positions = upload([len(request.tokens) for request in sampled], device)

    def draw(self, logits: Tensor, token_ids: Tensor, num_before: int) -> Tensor:
        """[n] a token for each of the first n passes, after so many drafts; ``logits`` [n, D] are of ``token_ids``."""
        columns, num = logits.argmax(-1), bisect_left(self._places, len(logits))
        if num:
            rows, positions = self._rows[:num], self._positions[:num] + num_before
            drawn = noisy_race(
                logits.index_select(0, rows), self._temperatures[:num], self._seeds[:num], positions, token_ids
            )
            columns.index_copy_(0, rows, drawn)
        return token_ids.index_select(0, columns)


class Drafter:
    """The modules at work on ``kv``."""

    def __init__(self, target: Llama, modules: Modules, kv: Kv, attention: Attention) -> None:
        self._target = target
        self._modules = modules
        self._kv = kv
        self._attention = attention

    @property
    def num_modules(self) -> int:
        return len(self._modules)

    @property
    def reuses(self) -> bool:
        """Whether one module chains all drafts."""
        return self._modules.policy.chain is ChainKind.SELF

    def target_hidden(self, h_te: Tensor, normed_te: Tensor) -> Tensor:
        """What the modules read of the target, given its hidden states before and after the final norm."""
        return h_te if self._modules.policy.target_hidden == "pre_norm" else normed_te

    def run(self, passes: Sequence[Pass]) -> list[list[int]]:
        """The drafts of each of ``passes``; none where it does not draft."""
        order = sorted(range(len(passes)), key=lambda i: (passes[i].drafting, -passes[i].num_runs))
        ordered = [passes[i] for i in order]
        drafting = [i for i in order if passes[i].drafting]
        drafts: list[list[int]] = [[] for _ in passes]
        drawn = self._reuse(ordered) if self.reuses else self._descend(ordered)
        if not drafting:
            return drafts
        tokens = iter(torch.cat(drawn).tolist())
        for part in drawn:
            for i, token in zip(drafting[: len(part)], tokens, strict=False):
                drafts[i].append(token)
        return drafts

    def _descend(self, passes: Sequence[Pass]) -> list[Tensor]:
        """Module after module over the same rows, whose tokens move on by one each time. Each module's drafts."""
        chained = self._modules.policy.chain is ChainKind.CHAINED
        ends = list(accumulate(p.num_rows for p in passes))
        lasts = upload([end - 1 for end in ends], self._kv.device)
        ids, hidden, rows = self._first_tokens(passes), _hidden(passes), self._rows(passes)
        draws = _Draws(passes, self._kv.device)
        on, asked, drawn = passes, dict[tuple[int, int], _Asked](), list[Tensor]()
        while on:
            m, num_rows = len(drawn), ends[len(on) - 1]
            later = [p for p in on if p.num_runs > m + 1]
            whole = on if num_rows <= _FEW_ROWS and on[-1].drafting else later
            shape = len(on), len(whole) if chained else 0
            if shape not in asked:
                asked[shape] = self._ask(on, shape[1])
            y = self._modules.run(
                m, ids[:num_rows], hidden[:num_rows], rows.front(num_rows), asked[shape].queries, self._kv
            )
            normed = self._modules.normed(m, y)
            drawn.append(self._draw(m, normed, asked[shape].heads, draws, m))
            if later:
                ids = ids[: ends[len(later) - 1]].roll(-1)
                ids.index_copy_(0, lasts[: len(later)], self._next_tokens(later, m, drawn[-1]))
                hidden = self._passed_on(y, normed) if chained else hidden
            on = later
        return drawn

    def _reuse(self, passes: Sequence[Pass]) -> list[Tensor]:
        """The one module over all rows, then on its own last outputs at the rows behind them. Each run's drafts.

        The rows behind are provisional: the next pass of the request writes them anew.
        """
        ids, hidden, drawn = self._first_tokens(passes), _hidden(passes), list[Tensor]()
        draws = _Draws(passes, self._kv.device)
        while passes:
            asked = self._ask(passes, 0)
            y = self._modules.run(0, ids, hidden, self._rows(passes), asked.queries, self._kv)
            normed = self._modules.normed(0, y)
            drawn.append(self._draw(0, normed, asked.heads, draws, len(drawn)))
            later = [p for p in passes if p.drafting and p.num_runs > len(drawn)]
            if later:
                ids = drawn[-1][: len(later)]
                hidden = self._passed_on(y, normed).index_select(0, asked.heads[: len(later)])
            passes = [replace(p, start=p.end, end=p.end + 1) for p in later]
        return drawn

    def _passed_on(self, y: Tensor, normed: Tensor) -> Tensor:
        """What the next run reads of this one's output."""
        return y if self._modules.policy.chain_hidden == "pre_norm" else normed

    def _ask(self, passes: Sequence[Pass], num_whole: int) -> _Asked:
        """Every row of the first ``num_whole`` passes is queried, of the others the last if it drafts."""
        index: list[int] = []
        heads, spans, end = [], [], 0
        for place, p in enumerate(passes):
            end += p.num_rows
            num = p.num_rows if place < num_whole else int(p.drafting)
            if num:
                spans.append(Span(start=len(index), num_new=num, num_context=p.end, blocks=p.request.blocks))
                index.extend(range(end - num, end))
            if p.drafting:
                heads.append(len(index) - 1)
        queries = Queries(
            index=None if len(index) == end else upload(index, self._kv.device),
            attend=self._attention.prepare(spans, self._kv.block_size),
        )
        return _Asked(queries=queries, heads=upload(heads, self._kv.device))

    def _rows(self, passes: Sequence[Pass]) -> Rows:
        positions = [position for p in passes for position in range(p.start, p.end)]
        return Rows(
            slots={group: self._kv.rows(self._slots(passes, group)) for group in self._kv.layout.draft_groups},
            rotation=self._target.rotation(upload(positions, self._kv.device)),
        )

    def _slots(self, passes: Sequence[Pass], group: int) -> Tensor:
        size = self._kv.block_size
        places = [slot for p in passes for slot in slots(p.request.blocks[group], range(p.start, p.end), size)]
        return upload(places, self._kv.device)

    def _draw(self, m: int, normed: Tensor, heads: Tensor, draws: _Draws, num_before: int) -> Tensor:
        """A token from each of ``heads``, which stand in the order of ``draws``."""
        if len(heads) == 0:
            return heads
        return draws.draw(self._modules.logits(m, normed.index_select(0, heads)), self._modules.draft_ids, num_before)

    def _first_tokens(self, passes: Sequence[Pass]) -> Tensor:
        tokens = [token for p in passes for token in p.request.tokens[p.start + 1 : p.end + 1]]
        return upload(tokens, self._kv.device)

    def _next_tokens(self, passes: Sequence[Pass], m: int, drawn: Tensor) -> Tensor:
        """What the last row of each pass reads in module m + 1: the known token, or module m's draft."""
        known = [p.request.tokens[p.end + m + 1] for p in passes if not p.drafting]
        if not known:
            return drawn[: len(passes)]
        return torch.cat([upload(known, self._kv.device), drawn[: len(passes) - len(known)]])


def _hidden(passes: Sequence[Pass]) -> Tensor:
    return torch.cat([p.hidden for p in passes])
