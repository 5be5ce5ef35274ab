"""The scheduler of one worker: propose, dispatch, apply (DESIGN §2), called in turn once per iteration.

``submit`` and ``cancel`` may come at any time between. A request is *waiting* without a lease or *running* with one.
Its lease holds slots for every known token from the start, so that a prompt once admitted is not cut off in its middle.
"""

from augury.errors import AuguryError, ContextLengthError, NotFiniteError
from augury.keys import extend_keys, root_key
from augury.types import (
    Delta,
    Ended,
    EndReason,
    Grant,
    Granted,
    NewRequest,
    Outcome,
    Proposal,
    Reserve,
    Row,
    Seal,
    Step,
)
from scheduler_svc.core.chunking import share_budget
from scheduler_svc.core.lane import Counters, Debts, LaneConfig
from scheduler_svc.core.policy import Queue, rank_of
from scheduler_svc.core.request import Request


class Scheduler:
    """Requests of one worker under one epoch of its pool."""

    def __init__(self, config: LaneConfig, epoch: int, num_available: int) -> None:
        self.config = config
        self.epoch = epoch
        self.num_available = num_available
        self.waiting = Queue(rank_of(config.policy))
        self.running = Queue(rank_of(config.policy))
        self.counters = Counters()
        self._requests: dict[int, Request] = {}
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

    # --- requests come and go ---

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ContextLengthError where it could never fit."""
        check_fits(request, self.config.max_len)
        request.keys, request.denied_at = [], None
        self._requests[request.handle] = request
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
        for request in self.running.take_all():
            request.restart()
            self.waiting.add(request)

    def evacuate(self) -> list[Request]:
        """Give up every request, in policy order, to be run elsewhere."""
        self.fence(self.epoch, self.num_available)
        self._requests.clear()
        return self.waiting.take_all()

    # --- propose ---

    def propose(self) -> Proposal | None:
        """What the pool must do before the next step; None where it owes nothing."""
        growing = self._short_of_slots()
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
            reserves=tuple(map(self._reserve, wanting)),
        )
        self._debts = Debts(tags=debts.tags, dropped=debts.dropped)
        return proposal

    def _short_of_slots(self) -> list[Request]:
        slots, size = self.config.max_drafts, self.config.block_size
        return [r for r in self.running.items if len(r.tokens) + slots > len(r.blocks) * size]

    def _make_room(self, growing: list[Request]) -> bool:
        """Preempt from the end of the policy order until ``growing`` fits, as far as one can tell from here."""
        needed = sum(map(self._num_blocks_short, growing))
        preempted = False
        while needed > self.num_available + self._debts.num_returning and len(self.running) > 1:
            victim = self.running.items[-1]
            if growing[-1] is victim:
                needed -= self._num_blocks_short(growing.pop())
            self._preempt(victim)
            preempted = True
        return preempted

    def _preempt(self, victim: Request) -> None:
        self.counters.num_preemptions += 1
        self._give_back(victim)
        self.waiting.add(victim)

    def _admissible(self, growing: list[Request]) -> list[Request]:
        """Waiting requests to admit, in order and without gaps, so that none is overtaken for want of blocks."""
        if not self.waiting.items:
            return []
        room = self.num_available + self._debts.num_returning - sum(map(self._num_blocks_short, growing))
        room -= len(self.running)  # a block of growth for each, lest the newcomer be preempted at once
        pending = sum(r.remaining for r in self.running.items if r.remaining > 1)
        entering: list[Request] = []
        for request in self.waiting.items:
            full = len(self.running) + len(entering) >= self.config.max_running
            denied = request.denied_at == self.num_available and not self._debts.num_returning
            if full or denied or pending >= self.config.max_batched_tokens:
                break
            num_hits = len(self._lookup_keys(request))
            num_blocks = self._num_blocks_short(request) - num_hits
            if num_blocks > room:
                break
            room -= num_blocks
            pending += len(request.tokens) - num_hits * self.config.block_size
            entering.append(request)
        return entering

    def _reserve(self, request: Request) -> Reserve:
        return Reserve(
            lease=request.handle,
            num_slots=len(request.tokens) + self.config.max_drafts,
            keys=() if request.blocks else self._lookup_keys(request),
        )

    def _lookup_keys(self, request: Request) -> tuple[bytes, ...]:
        """Names of the blocks a hit may cover; a name proves the lookahead, so max(1, lookahead) known tokens stay."""
        if not self.config.prefix_caching:
            return ()
        return tuple(self._names(request)[: (len(request.tokens) - 1) // self.config.block_size])

    def _num_blocks_short(self, request: Request) -> int:
        return self.config.num_blocks_for(len(request.tokens)) - len(request.blocks)

    # --- dispatch ---

    def dispatch(self, grant: Grant | None) -> Step | None:
        """The step over what was granted; None where there is nothing to run."""
        fresh = self._take(grant) if grant else []
        planned = self._plan()
        if not (planned or fresh):
            return None
        self._step_seq += 1
        self._in_flight = [(request, _row(request, *sizes)) for request, sizes in planned]
        debts = self._debts
        step = Step(
            epoch=self.epoch,
            seq=self._step_seq,
            released=tuple(debts.dropped),
            sealed=tuple(debts.tags),
            fresh=tuple(fresh),
            rows=tuple(row for _, row in self._in_flight),
        )
        debts.dropped, debts.tags = [], []
        return step

    def _take(self, grant: Grant) -> list[NewRequest]:
        self.num_available = grant.num_available
        fresh, split = [], len(self._growing)
        for request, granted in zip(self._growing, grant.reserves[:split], strict=True):
            if granted and request.handle in self._requests:
                request.blocks.extend(granted.blocks)
        for request, granted in zip(self._entering, grant.reserves[split:], strict=True):
            if granted is None:
                request.denied_at = grant.num_available
            elif request.handle in self._requests:
                fresh.append(self._admit(request, granted))
            else:
                self._owe_release(request.handle, len(granted.blocks))
        self._growing, self._entering = [], []
        return fresh

    def _admit(self, request: Request, granted: Granted) -> NewRequest:
        self.waiting.remove(request)
        self.running.add(request)
        num_hits, size = granted.num_hit_blocks, self.config.block_size
        request.blocks = list(granted.blocks)
        request.num_delivered = len(request.blocks)
        request.num_sealed, request.num_computed = num_hits, num_hits * size
        request.num_final = request.num_computed
        request.denied_at = None
        self.counters.query_tokens += len(request.tokens)
        self.counters.hit_tokens += request.num_computed
        if request.num_cached is None:
            request.num_cached = min(request.num_computed, len(request.generation.prompt))
            self.counters.prompt_tokens += len(request.generation.prompt)
        return NewRequest(
            handle=request.handle,
            tokens=tuple(request.tokens),
            num_prompt=len(request.generation.prompt),
            num_computed=request.num_computed,
            blocks=granted.blocks,
            hit_keys=tuple(self._names(request)[:num_hits]),
            sampling=request.generation.sampling,
            stopping=request.generation.stopping,
            max_drafts=request.generation.max_drafts,
        )

    def _plan(self) -> list[tuple[Request, tuple[int, int]]]:
        """Requests that run, with their numbers of known tokens and of drafts.

        One that was denied its growth sits this iteration out.
        """
        slots, size = self.config.max_drafts, self.config.block_size
        prompts, decodes = list[Request](), list[Request]()
        for request in self.running.items:
            if len(request.tokens) + slots <= len(request.blocks) * size:
                (prompts if request.remaining > 1 else decodes).append(request)
        prompt_sizes, decode_sizes = share_budget(
            [r.remaining for r in prompts],
            [1 + _usable_drafts(r) if r.num_drafts else 1 for r in decodes],
            self.config.max_batched_tokens,
            self.config.num_prefill_lookahead,
        )
        planned = [(r, (1, size - 1)) for r, size in zip(decodes, decode_sizes, strict=True) if size]
        planned += [(r, (size, 0)) for r, size in zip(prompts, prompt_sizes, strict=True) if size]
        return planned

    # --- apply ---

    def apply(self, outcome: Outcome) -> list[Delta]:
        """Take a step's outcome: tokens and ends for clients. Rows of requests that ended meanwhile are passed over."""
        self.counters.num_iterations += 1
        in_flight, self._in_flight = self._in_flight, []
        unmoved = {*outcome.refused, *outcome.failed}
        deltas = []
        columns = zip(in_flight, outcome.emitted, outcome.num_drafts, outcome.num_final, strict=True)
        for (request, row), emitted, num_drafts, num_final in columns:
            if request.handle not in self._requests or request.handle in unmoved:
                continue
            request.num_computed += row.num_new
            request.num_drafts, request.num_final = num_drafts, num_final
            if emitted:
                deltas.append(self._emit(request, row, emitted))
            else:
                self._owe_seals(request)
        for handle in outcome.refused:
            self._start_over(handle)
        for handle in outcome.failed:
            deltas.extend(self.fail(handle, NotFiniteError("the model's output is not finite")))
        return deltas

    def _emit(self, request: Request, row: Row, emitted: tuple[int, ...]) -> Delta:
        """All of ``emitted`` but the last are accepted drafts; nothing counts after the request's end."""
        request.num_computed += len(emitted) - 1
        reason, taken = None, 0
        for token in emitted:
            request.tokens.append(token)
            taken += 1
            reason = self._end_reason(request, token)
            if reason is not None:
                break
        self.counters.generation_tokens += taken
        num_accepted = min(taken, len(emitted) - 1)
        if row.num_drafts:
            self.counters.count_drafts(row.num_drafts, num_accepted)
        self._owe_seals(request)
        return Delta(
            ticket=request.handle,
            tokens=emitted[:taken],
            num_cached=request.num_cached or 0,
            num_drafts=row.num_drafts,
            num_accepted=num_accepted,
            ended=None if reason is None else self._end(request, reason).ended,
        )

    def _end_reason(self, request: Request, token: int) -> EndReason | None:
        stopping = request.generation.stopping
        if token in stopping.stop_token_ids and request.num_emitted > stopping.min_tokens:
            return EndReason.STOP
        return EndReason.LENGTH if request.num_emitted >= stopping.max_tokens else None

    def _start_over(self, handle: int) -> None:
        """The worker does not recognise the hit: recompute, and let nobody hit those keys again (DESIGN §3.4)."""
        request = self._requests.get(handle)
        if request is None:
            return
        self.counters.num_refused += 1
        self._debts.forgotten.extend(self._names(request)[: request.num_sealed])
        request.num_cached = 0
        self._give_back(request)
        self.waiting.add(request)

    # --- ends, seals and debts ---

    def _end(self, request: Request, reason: EndReason, error: AuguryError | None = None) -> Delta:
        del self._requests[request.handle]
        if request.blocks:
            self._give_back(request)
        else:
            self.waiting.remove(request)
        ended = Ended(
            reason=reason,
            error_code=error.code if error else None,
            error_message=str(error) if error else None,
        )
        return Delta(ticket=request.handle, num_cached=request.num_cached or 0, ended=ended)

    def _give_back(self, request: Request) -> None:
        self.running.remove(request)
        self._owe_release(request.handle, len(request.blocks))
        self._debts.dropped.append(request.handle)
        request.restart()

    def _owe_release(self, handle: int, num_blocks: int) -> None:
        self._debts.releases.append(handle)
        self._debts.num_returning += num_blocks

    def _owe_seals(self, request: Request) -> None:
        """Blocks whose every slot is final (rule D), as far as they have names."""
        if not self.config.prefix_caching:
            return
        num_final = request.num_final // self.config.block_size
        if num_final <= request.num_sealed:
            return
        names = self._names(request)
        num_final = min(num_final, len(names))
        for index in range(request.num_sealed, num_final):
            self._debts.seals.append(Seal(lease=request.handle, index=index, key=names[index]))
            self._debts.tags.append((request.blocks[index], names[index]))
        request.num_sealed = max(num_final, request.num_sealed)

    def _names(self, request: Request) -> list[bytes]:
        """What the request's blocks are found under: equal names mean equal KV, draft layers included (rule E)."""
        config = self.config
        root = root_key(config.fingerprint, request.generation.cache_salt)
        extend_keys(request.keys, root, request.tokens, config.block_size, config.key_reach)
        return request.keys[config.key_margin :]


def _row(request: Request, num_new: int, num_drafts: int) -> Row:
    """The request's share of a step; its blocks are delivered with it."""
    new_blocks = tuple(request.blocks[request.num_delivered :])
    request.num_delivered = len(request.blocks)
    return Row(handle=request.handle, num_new=num_new, num_drafts=num_drafts, new_blocks=new_blocks)


def _usable_drafts(request: Request) -> int:
    """Drafts worth verifying: within the client's bound, and not past the last token it wants."""
    generation = request.generation
    wanted = generation.stopping.max_tokens - request.num_emitted - 1
    bound = wanted if generation.max_drafts is None else min(wanted, generation.max_drafts)
    return min(request.num_drafts, bound)


def check_fits(request: Request, max_len: int) -> None:
    """Raise ContextLengthError unless prompt and wanted tokens fit ``max_len``, with the numbers."""
    num_prompt, max_tokens = len(request.generation.prompt), request.generation.stopping.max_tokens
    if num_prompt + max_tokens > max_len:
        raise ContextLengthError(
            f"{num_prompt} prompt tokens and {max_tokens} to generate exceed the context window of {max_len} tokens"
        )
