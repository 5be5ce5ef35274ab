"""The scheduler of one worker: propose, dispatch, apply (DESIGN §2), called in turn once per iteration.

``submit`` and ``cancel`` may come at any time between. A request is *waiting* without a lease or *running* with one.
Its lease holds slots for every known token from the start, and in window groups a claim to them, so that a prompt once
admitted is not cut off in its middle.
"""

from augury.errors import AuguryError, NotFiniteError
from augury.types import (
    Delta,
    Ended,
    EndReason,
    Grant,
    Granted,
    Holding,
    NewRequest,
    Outcome,
    Proposal,
    Row,
    Step,
)
from scheduler_svc.core import room
from scheduler_svc.core.accounts import GENERATED_WEIGHT
from scheduler_svc.core.encoder import EncoderCache
from scheduler_svc.core.fair import FairQueue
from scheduler_svc.core.lane import Counters, Debts, LaneConfig
from scheduler_svc.core.memory import Memory
from scheduler_svc.core.misses import Misses
from scheduler_svc.core.names import Names
from scheduler_svc.core.plan import plan
from scheduler_svc.core.policy import Policy, Queue, rank_of
from scheduler_svc.core.request import Request
from scheduler_svc.core.sealing import owe_seals

Tags = list[tuple[int, bytes]]
"""Blocks and the keys they carry."""


class Scheduler:
    """Requests of one worker under one epoch of its pool. ``memory`` is what that may hold."""

    def __init__(self, config: LaneConfig, epoch: int, num_available: int) -> None:
        self.config = config
        self.epoch = epoch
        self.num_available = num_available
        fair = config.policy is Policy.FAIR
        self.waiting: FairQueue | Queue = FairQueue() if fair else Queue(rank_of(config.policy))
        self.running = Queue(rank_of(config.policy))
        self.counters = Counters()
        self.names = Names(config)
        self.memory = Memory()
        self._misses = Misses(config, self.names)
        self._encoder = _encoder_of(config)
        self._requests: dict[int, Request] = {}
        self._num_behind = 0
        self._debts = Debts()
        self._proposal_seq = 0
        self._step_seq = 0
        self._growing: list[Request] = []
        self._entering: list[Request] = []
        self._in_flight: list[tuple[Request, Row]] = []

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._debts.releases)

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def queue_tokens(self) -> int:
        """Known tokens that all requests have yet to compute."""
        return self._num_behind + len(self._requests)

    # --- requests come and go ---

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ContextLengthError or InvalidRequestError where it could never run."""
        room.check_fits(self.config, request)
        request.denied_at, request.doubtful = None, False
        self._requests[request.handle] = request
        self._num_behind += request.remaining - 1
        self.waiting.add(request)

    def cancel(self, handle: int) -> Delta | None:
        """End a request; its blocks go back with the next proposal, when no step can be using them."""
        request = self._requests.get(handle)
        return None if request is None else self._end(request, EndReason.CANCELLED)

    def fail(self, handle: int, error: AuguryError) -> list[Delta]:
        """End a request with ``error``; empty where it has ended before."""
        request = self._requests.get(handle)
        return [] if request is None else [self._end(request, EndReason.FAILED, error)]

    def fence(self, epoch: int, num_available: int) -> None:
        """A new epoch of the pool: every lease is gone, so every request starts over with the tokens it has."""
        self.epoch, self.num_available = epoch, num_available
        self._proposal_seq = 0
        self._debts, self._growing, self._entering, self._in_flight = Debts(), [], [], []
        self._encoder = _encoder_of(self.config)
        for request in self.running.take_all():
            self._num_behind += request.num_computed
            request.restart()
            self.waiting.add(request)

    def renew(self, tags: Tags) -> tuple[list[Holding], Tags]:
        """The pool is lost and to be opened again under the same epoch, the worker holding blocks with ``tags``.

        Returns the leases to take over and the content of other blocks. The proposal in flight counts as never sent.
        Seals are among the leases; who is not among them needs no release.
        """
        debts = self._debts
        self._debts = Debts(forgotten=debts.sent + debts.forgotten, tags=debts.tags, dropped=debts.dropped)
        self._proposal_seq, self._growing, self._entering = 0, [], []
        for request in self.waiting.items:
            request.denied_at = None
        holdings = [self.names.holding(request) for request in self.running.items]
        held = {block for holding in holdings for table in holding.blocks for block in table}
        content = {**dict(tags), **dict(debts.tags)}
        return holdings, [(block, key) for block, key in content.items() if block not in held]

    def evacuate(self) -> list[Request]:
        """Give up every request, in policy order, to be run elsewhere."""
        self.fence(self.epoch, self.num_available)
        self._requests.clear()
        self._num_behind = 0
        return self.waiting.take_all()

    # --- propose ---

    def propose(self) -> Proposal | None:
        """What the pool must do before the next step; None where it owes nothing."""
        growing = room.short(self.config, self.running.items)
        preempted = self._make_room(growing)
        self._growing, self._entering = growing, [] if preempted else self._admissible(growing)
        wanting = growing + self._entering
        debts = self._debts
        if not (wanting or debts.seals or debts.releases or debts.forgotten):
            return None
        self._proposal_seq += 1
        proposal = Proposal(
            pool=self.config.pool,
            epoch=self.epoch,
            seq=self._proposal_seq,
            forgotten=tuple(debts.forgotten),
            seals=tuple(debts.seals),
            releases=tuple(debts.releases),
            reserves=tuple(room.reserve(self.config, self.names, request) for request in wanting),
        )
        self._debts = Debts(tags=debts.tags, dropped=debts.dropped, sent=debts.forgotten)
        return proposal

    def _make_room(self, growing: list[Request]) -> bool:
        """Preempt from the end of the policy order until ``growing`` fits, as far as one can tell from here."""
        needed = sum(room.growth(self.config, request) for request in growing)
        preempted = False
        while needed > self.num_available + self._debts.num_returning and len(self.running) > 1:
            victim = self.running.items[-1]
            if growing[-1] is victim:
                needed -= room.growth(self.config, growing.pop())
            self._preempt(victim)
            preempted = True
        return preempted

    def _preempt(self, victim: Request) -> None:
        self.counters.num_preemptions += 1
        self._give_back(victim)
        self.waiting.add(victim)

    def _admissible(self, growing: list[Request]) -> list[Request]:
        """Waiting requests to admit, in order and without gaps, so that none is overtaken for want of blocks."""
        if not self.waiting:
            return []
        config, available = self.config, self.num_available + self._debts.num_returning
        claimed = sum(room.claim(config, r) for r in (self.running.items if config.has_windows else growing))
        watermark = len(self.running)  # a block of growth for each, lest the newcomer be preempted at once
        spare = available - claimed - watermark
        pending = sum(r.remaining for r in self.running.items if r.remaining > 1)
        entering: list[Request] = []
        for request in self.waiting:
            full = len(self.running) + len(entering) >= config.max_running
            if full or request.denied_at == available or pending >= config.max_batched_tokens:
                break
            hit = 0 if request.doubtful else self.names.longest_hit(request)
            num_blocks = room.entry(config, request, hit)
            if num_blocks > spare:
                break
            spare -= num_blocks
            pending += len(request.tokens) - hit
            entering.append(request)
        return entering

    # --- dispatch ---

    def dispatch(self, grant: Grant | None) -> Step | None:
        """The step over what was granted; None where there is nothing to run."""
        fresh = self._take(grant) if grant else []
        planned = plan(self.config, self._ready(), self._encoder)
        if not (planned or fresh):
            return None
        self._step_seq += 1
        self._in_flight = planned
        debts = self._debts
        self.memory.learn(debts.tags)
        step = Step(
            epoch=self.epoch,
            seq=self._step_seq,
            released=tuple(debts.dropped),
            sealed=tuple(debts.tags),
            fresh=tuple(fresh),
            rows=tuple([row for _, row in planned]),
            discarded=self._encoder.take_dropped() if self._encoder else (),
        )
        debts.dropped, debts.tags = [], []
        return step

    def _take(self, grant: Grant) -> list[NewRequest]:
        self.num_available = grant.num_available
        self._debts.sent = []
        split = len(self._growing)
        for request, granted in zip(self._growing, grant.reserves[:split], strict=True):
            if request.handle in self._requests:
                request.grow(granted, self.config.groups)
                for blocks in request.undelivered:
                    self.memory.overwrite(blocks)
        leased: list[tuple[Request, Granted]] = []
        for request, granted in zip(self._entering, grant.reserves[split:], strict=True):
            if granted is None:
                request.denied_at = grant.num_available
                continue
            request.lease(granted, self.config.groups)
            if request.handle in self._requests:
                leased.append((request, granted))
            else:
                self._owe_release(request)
        self._return_overdrawn(leased)
        return [self._admit(request, granted) for request, granted in leased]

    def _return_overdrawn(self, leased: list[tuple[Request, Granted]]) -> None:
        """Give back the last of ``leased`` that were hit too little to leave what those before them claim."""
        config = self.config
        if not (leased and config.has_windows):
            return
        claimants = [*self.running.items, *(request for request, _ in leased)]
        spare = self.num_available - sum(room.claim(config, request) for request in claimants)
        while spare < 0 and leased and len(leased) + len(self.running) > 1:
            request, _ = leased.pop()
            spare += room.claim(config, request) + request.num_held
            self._owe_release(request)
            request.restart()
            request.doubtful, request.denied_at = True, self.num_available + self._debts.num_returning

    def _admit(self, request: Request, granted: Granted) -> NewRequest:
        self.waiting.remove(request)
        self.running.add(request)
        self._num_behind -= request.num_computed
        request.pay(weight=0)
        for table in request.tables:
            self.memory.overwrite(table.blocks[table.num_hit :])
        counters, num_prompt = self.counters, len(request.generation.prompt)
        counters.query_tokens += len(request.tokens)
        counters.hit_tokens += request.num_computed
        miss = self._misses.reason(request, granted)
        if miss is not None:
            counters.misses[miss] += 1
        if request.num_cached is None:
            request.num_cached = min(request.num_computed, num_prompt)
            counters.prompt_tokens += num_prompt
        return request.fresh(granted, self.names.hits(request))

    def _ready(self) -> list[Request]:
        """Requests with slots for their step. One that was denied its growth sits this iteration out."""
        denied = room.short(self.config, self._growing)
        return [r for r in self.running.items if r not in denied] if denied else self.running.items

    # --- apply ---

    def apply(self, outcome: Outcome) -> list[Delta]:
        """Take a step's outcome: tokens and ends for clients. Rows of requests that ended meanwhile are passed over."""
        in_flight, self._in_flight = self._in_flight, []
        self.counters.count_iteration(sum([row.num_new + row.num_drafts for _, row in in_flight]))
        unmoved = {*outcome.refused, *outcome.failed}
        deltas = []
        columns = zip(in_flight, outcome.emitted, outcome.num_drafts, outcome.num_final, strict=True)
        for (request, row), emitted, num_drafts, num_final in columns:
            if request.handle not in self._requests or request.handle in unmoved:
                continue
            request.num_computed += row.num_new
            request.num_drafts, request.num_final = num_drafts, num_final
            if request.unpaid:
                request.pay()
            if emitted:
                deltas.append(self._emit(request, row, emitted))
            else:
                self._num_behind -= row.num_new
                if request.num_computed >= request.seal_at:
                    self._owe_seals(request)
            if self._encoder:
                self._encoder.release(request.handle, request.generation.inputs, request.num_computed)
        for handle in outcome.refused:
            self._start_over(handle)
        for handle in outcome.failed:
            deltas.extend(self.fail(handle, NotFiniteError("the model's output is not finite")))
        return deltas

    def _emit(self, request: Request, row: Row, emitted: tuple[int, ...]) -> Delta:
        """All of ``emitted`` but the last are accepted drafts; nothing counts after the request's end."""
        num_accepted = len(emitted) - 1
        taken, reason = request.take(emitted)
        self.counters.generation_tokens += taken
        request.account.served += GENERATED_WEIGHT * taken
        if row.num_drafts:
            request.num_computed += num_accepted
            self._num_behind -= row.num_new + num_accepted - taken
            num_accepted = min(taken, num_accepted)
            self.counters.count_drafts(row.num_drafts, num_accepted)
        elif row.num_new > 1:
            self._num_behind -= row.num_new - 1
        if request.num_computed >= request.seal_at:
            self._owe_seals(request)
        return Delta(
            ticket=request.handle,
            tokens=emitted[:taken],
            num_cached=request.num_cached or 0,
            num_drafts=row.num_drafts,
            num_accepted=num_accepted,
            ended=None if reason is None else self._end(request, reason).ended,
        )

    def _owe_seals(self, request: Request) -> None:
        if self.config.prefix_caching:
            owe_seals(self.config, self.names, request, self._debts)

    def _start_over(self, handle: int) -> None:
        """The worker does not recognise the hit: recompute, and let nobody hit those keys again (DESIGN §3.4)."""
        request = self._requests.get(handle)
        if request is None:
            return
        self.counters.num_refused += 1
        keys = [key for _, key in self.names.hits(request)]
        self._debts.forgotten.extend(keys)
        self.memory.forget(keys)
        request.num_cached = 0
        self._give_back(request)
        self.waiting.add(request)

    # --- ends and debts ---

    def _end(self, request: Request, reason: EndReason, error: AuguryError | None = None) -> Delta:
        del self._requests[request.handle]
        if request.tables:
            self._give_back(request)
        else:
            self.waiting.remove(request)
        request.account.num_requests -= 1
        self._num_behind -= len(request.tokens) - 1
        ended = Ended(
            reason=reason,
            error_code=error.code if error else None,
            error_message=str(error) if error else None,
        )
        return Delta(ticket=request.handle, num_cached=request.num_cached or 0, ended=ended)

    def _give_back(self, request: Request) -> None:
        self.running.remove(request)
        self._owe_release(request)
        self._debts.dropped.append(request.handle)
        if self._encoder:
            self._encoder.release(request.handle, request.generation.inputs)
        self._num_behind += request.num_computed
        request.restart()

    def _owe_release(self, request: Request) -> None:
        self._debts.releases.append(request.handle)
        self._debts.num_returning += request.num_held


def _encoder_of(config: LaneConfig) -> EncoderCache | None:
    """What a worker with an encoder remembers, which is nothing yet."""
    if not config.encoder_budget:
        return None
    return EncoderCache(config.encoder_budget, config.encoder_cache, config.num_prefill_lookahead)
