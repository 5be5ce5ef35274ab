"""Which rows the MTP modules run on and how deep they draft, so that draft KV becomes final as early as it can.

Module m's KV of row q is final once the tokens up to q + m + 1 are known, if it was written from them. The frontier of
a module is its first row that is not; everything else follows from these numbers (mtp_semantics rules C, D and §8.1).
A frontier may lag by some blocks where a request decodes and its modules are not asked; they catch up in one pass when
the lag is too long, when drafts are wanted, and when the request ends.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worker_svc.depth import Acceptance, DepthPolicy
from worker_svc.drafter import Pass
from worker_svc.kv import Kv
from worker_svc.requests import Held

_LAG_BLOCKS = 4
"""Full blocks that a decoding request may have behind its frontier. One pass over several costs little more than over
one, and hits are rare on a text that is being written."""


def num_lagging(block_size: int) -> int:
    """Rows that a frontier may be behind what known tokens allow, after every step."""
    return _LAG_BLOCKS * block_size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What a step did for a request: ``hidden`` [n, E] belongs to its n rows that became computed; ``num_emitted``
    tokens became known, and ``fates`` tells of the verified drafts, up to the first rejected one, which were accepted.
    """

    handle: int
    request: Held
    hidden: Tensor
    num_emitted: int
    fates: Sequence[bool]


@dataclass(slots=True, kw_only=True)
class _State:
    """A request's frontiers by module, the target's hidden states [n, E] of its last n computed rows, from the lowest
    frontier on, and the drafts that the modules chained last."""

    frontiers: list[int]
    hidden: Tensor
    chained: list[int]
    acceptance: Acceptance

    @property
    def lowest(self) -> int:
        return min(self.frontiers)

    def raise_frontiers(self, num_modules: int, end: int, num_known: int) -> None:
        """The first ``num_modules`` wrote the rows below ``end`` from tokens of which ``num_known`` are the text's."""
        for m, frontier in enumerate(self.frontiers[:num_modules]):
            self.frontiers[m] = max(frontier, min(end, num_known - 1 - m))

    def rows(self, request: Held, start: int, end: int) -> Tensor:
        """The hidden states of rows ``start`` to ``end - 1``."""
        first = request.num_computed - len(self.hidden)
        assert first <= start
        return self.hidden[start - first : end - first]


class Drafts(Protocol):
    """What the speculator needs of the modules."""

    @property
    def num_modules(self) -> int: ...

    @property
    def reuses(self) -> bool:
        """Whether one module chains all drafts, at rows behind the known ones (mtp_semantics §1.5)."""
        ...

    def target_hidden(self, h_te: Tensor, normed_te: Tensor) -> Tensor: ...

    def run(self, passes: Sequence[Pass]) -> list[list[int]]:
        """Write the KV of the passes' rows; their drafts."""
        ...


class Speculator:
    """Drafts for the requests of one engine. ``policy`` says how many, ``max_len`` bounds a request's tokens."""

    def __init__(self, drafter: Drafts, policy: DepthPolicy, kv: Kv, max_len: int) -> None:
        self.policy = policy
        self._drafter = drafter
        self._kv = kv
        self._max_len = max_len
        self._states: dict[int, _State] = {}
        self._done_at: float | None = None

    def target_hidden(self, h_te: Tensor, normed_te: Tensor) -> Tensor:
        """What the modules read of the target, given its hidden states before and after the final norm."""
        return self._drafter.target_hidden(h_te, normed_te)

    def time_target(self, num_rows: int, started: float) -> None:
        """The target ran on so many rows since ``started``, on the clock of ``time.perf_counter``."""
        self.policy.time_target(num_rows, time.perf_counter() - started)
        if self._done_at is not None:
            self.policy.time_gap(started - self._done_at)

    def forget(self, handle: int) -> None:
        """The request is not held any more."""
        self._states.pop(handle, None)

    def follow(self, advances: Sequence[Advance]) -> None:
        """Run the modules after a step. Sets the requests' drafts and how many of their tokens are final."""
        for advance in advances:
            self._take(advance)
        passes = self._plan(advances)
        for handle, drafts in zip(passes, self._run([*passes.values()]), strict=True):
            self._settle(self._states[handle], passes[handle], drafts)
        for advance in advances:
            self._trim(self._states[advance.handle], advance.request)
        self._done_at = time.perf_counter()

    def _take(self, advance: Advance) -> None:
        """Rows became computed and tokens known: draft KV written from drafts that came true is final."""
        request = advance.request
        num_computed, num_known = request.num_computed - len(advance.hidden), len(request.tokens) - advance.num_emitted
        state = self._states.get(advance.handle)
        if state is None:
            state = self._states[advance.handle] = self._newcomer(num_computed, advance.hidden)
        num_true = num_known + _num_equal(state.chained, request.tokens[num_known:])
        if state.chained:
            state.raise_frontiers(len(state.chained), num_computed, num_true)
        if advance.fates:
            self.policy.judge(state.acceptance, advance.fates)
        state.hidden = torch.cat([state.hidden, advance.hidden])
        state.chained, request.drafts = [], []

    def _newcomer(self, num_computed: int, hidden: Tensor) -> _State:
        """A request whose rows before ``num_computed`` were hit, so that their draft KV is final."""
        return _State(
            frontiers=[num_computed] * self._drafter.num_modules,
            hidden=hidden[:0],
            chained=[],
            acceptance=self.policy.newcomer(),
        )

    def _plan(self, advances: Sequence[Advance]) -> dict[int, Pass]:
        """The passes to run, by handle."""
        acceptances = [self._states[advance.handle].acceptance for advance in advances]
        depths = self.policy.choose(acceptances, [self._limit(advance) for advance in advances])
        passes = {}
        for advance, depth in zip(advances, depths, strict=True):
            planned = self._pass(self._states[advance.handle], advance.request, depth)
            if planned is not None:
                passes[advance.handle] = planned
        return passes

    def _limit(self, advance: Advance) -> int:
        """Drafts that the request could have verified in its next step."""
        request = advance.request
        if advance.num_emitted == 0 or request.ended:
            return 0
        num_known = len(request.tokens)
        limits = [
            self.policy.num_drafts,
            self._max_len - num_known,
            request.stopping.max_tokens - request.num_emitted - 1,
        ]
        if request.max_drafts is not None:
            limits.append(request.max_drafts)
        if self._drafter.reuses:
            # The run for draft n > 1 writes at position num_known + n - 3.
            num_blocks = min(len(request.blocks[group]) for group in self._kv.layout.draft_groups)
            limits.append(num_blocks * self._kv.block_size - num_known + 2)
        return max(0, min(limits))

    def _pass(self, state: _State, request: Held, depth: int) -> Pass | None:
        """The rows to run for ``depth`` drafts, or only to catch up; None for neither."""
        size, start = self._kv.block_size, state.lowest
        end = max(start, min(request.num_computed, len(request.tokens) - self._drafter.num_modules))
        num_full = end // size - start // size
        decoding = start >= request.num_prompt and not request.ended
        catches_up = num_full >= (_LAG_BLOCKS if decoding else 1)
        num_runs = max(depth, self._drafter.num_modules) if catches_up else depth
        if depth:
            start, end = min(state.frontiers[:num_runs]), request.num_computed
        if num_runs == 0:
            return None
        self._kv.check_open(request.blocks, self._kv.layout.draft_groups, range(start, end))
        return Pass(
            request=request,
            start=start,
            end=end,
            num_runs=num_runs,
            num_drafts=depth,
            hidden=state.rows(request, start, end),
        )

    def _run(self, passes: Sequence[Pass]) -> list[list[int]]:
        if not passes:
            return []
        started = time.perf_counter()
        drafts = self._drafter.run(passes)
        seconds = time.perf_counter() - started
        drafting = [p for p in passes if p.num_drafts]
        if drafting and all(p.num_rows <= self.policy.num_drafts + 1 for p in passes):
            self.policy.time_module(len(drafting), seconds / max(p.num_runs for p in passes))
        return drafts

    def _settle(self, state: _State, done: Pass, drafts: list[int]) -> None:
        """What the pass wrote from known tokens is final."""
        state.raise_frontiers(done.num_runs, done.end, len(done.request.tokens))
        state.chained = drafts
        done.request.drafts = drafts[: done.num_drafts]

    def _trim(self, state: _State, request: Held) -> None:
        """Keep what later passes can need."""
        lag = request.num_computed - state.lowest
        assert lag < self._drafter.num_modules + num_lagging(self._kv.block_size), "windows retain less than that"
        request.num_final = state.lowest
        state.hidden = state.rows(request, state.lowest, request.num_computed).clone()


def _num_equal(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """Leading drafts that came true."""
    num = 0
    for draft, token in zip(drafts, tokens, strict=False):
        if draft != token:
            break
        num += 1
    return num
