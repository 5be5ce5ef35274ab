"""What must hold of every proposal, step and rest, seen from outside the cores."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import takewhile

from augury.convert.kvcache import Content
from augury.geometry import NULL_BLOCK, peak_blocks
from augury.types import Delta, Grant, Holding, Miss, Outcome, Proposal, Step
from kvcache_svc.core.coordinator import Coordinator
from kvcache_svc.core.leases import Tables
from scheduler_svc.core.lane import Counters, LaneConfig
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.worker import Worker


class OrderCheck:
    """Asked around ``propose`` and when the grant is there, again and again for one lane."""

    def __init__(self) -> None:
        self._entering: set[int] = set()
        self._num_running = 0
        self._num_hit: dict[int, int] = {}
        self._peaks: dict[int, int] = {}
        """Blocks that each running request was to need at most, when last one was admitted; by handle."""

    def proposal(self, lane: Scheduler, propose: Callable[[], Proposal | None]) -> Proposal | None:
        """Preemption takes the last in policy order and spares the first; admission takes the first without gaps.

        Nobody is preempted but for tokens that came since the last admission: for the known ones there was room.
        """
        before = list(lane.running.items)
        grown = any(_peak(lane.config, request) > self._peaks[request.handle] for request in before)
        proposal = propose()
        kept, waiting = lane.running.items, lane.waiting.items
        for queue in (kept,) if lane.config.policy is Policy.FAIR else (kept, waiting):
            assert queue == sorted(queue, key=partial(_rank, lane)), "a queue is out of order"
        assert lane.queue_tokens == sum(request.remaining for request in (*kept, *waiting)), "tokens are miscounted"
        assert kept == before[: len(kept)], "a request was preempted for a later one"
        assert bool(kept) == bool(before), "the head of the order was preempted"
        assert grown or len(kept) == len(before), "prompts preempt one another"
        running = {request.handle for request in kept}
        reserves = proposal.reserves if proposal else ()
        entering = [reserve.lease for reserve in reserves if reserve.lease not in running]
        assert entering == [request.handle for request in waiting[: len(entering)]], "a waiting request was overtaken"
        self._entering, self._num_running = set(entering), len(kept)
        return proposal

    def grant(self, lane: Scheduler, proposal: Proposal, grant: Grant) -> None:
        """Those who enter are granted without gaps, and leave every other one a block to grow."""
        asked = zip(proposal.reserves, grant.reserves, strict=True)
        granted = [answer is not None for reserve, answer in asked if reserve.lease in self._entering]
        assert granted == sorted(granted, reverse=True), "a waiting request was overtaken in the pool"
        exact = not (proposal.releases or lane.config.prefix_caching)
        assert not (exact and any(granted)) or grant.num_available >= self._num_running, "no room is left to grow"

    def step(self, lane: Scheduler, step: Step, pool: Coordinator | None) -> None:
        """When a step is made: all who run, the newcomers too, can come to the end of their known tokens."""
        if not step.fresh:
            return
        running = {request.handle: request for request in lane.running.items}
        self._peaks = {handle: _peak(lane.config, request) for handle, request in running.items()}
        self._num_hit.update((new.handle, new.num_computed) for new in step.fresh)
        if pool is None or len(running) == 1 or pool.leases.tables.keys() != running.keys():
            return
        if any(group.window is not None for group in lane.config.groups):
            claims = sum(self._claim(lane.config, each, pool.leases.tables[handle]) for handle, each in running.items())
            assert claims <= pool.pool.num_available, (
                f"{claims} blocks are promised, {pool.pool.num_available} are left"
            )

    def _claim(self, config: LaneConfig, request: Request, tables: Tables) -> int:
        """Blocks that a request may still take; hits that a window leaves behind are of no use to it."""
        num_slots = len(request.tokens) + config.max_drafts
        num_ahead = min(request.remaining, config.max_batched_tokens) + config.max_drafts
        claim = 0
        for group, table in zip(config.groups, tables, strict=True):
            num_hit = 0 if group.window is None else self._num_hit[request.handle] // group.block_size
            num_held = sum(block != NULL_BLOCK for block in table[num_hit:])
            claim += max(0, group.peak(num_slots, num_ahead) - num_held)
        return claim


def _peak(config: LaneConfig, request: Request) -> int:
    return peak_blocks(config.groups, len(request.tokens) + config.max_drafts, config.max_batched_tokens)


def _rank(lane: Scheduler, request: Request) -> tuple[int, int]:
    by_priority = lane.config.policy is Policy.PRIORITY
    return request.generation.priority if by_priority else 0, request.arrival


def check_step(lane: Scheduler, step: Step, worker: Worker) -> None:
    """Budget and batch are kept, the oldest prompt advances and the oldest decode verifies every draft it can use
    (chunking.min_budget), and nobody verifies more.
    """
    config, rows = lane.config, {row.handle: row for row in step.rows}
    num_tokens = sum(row.num_new + row.num_drafts for row in step.rows)
    assert num_tokens <= config.max_batched_tokens, "a step over the token budget"
    assert len(rows) <= config.max_running, "a step over the batch size"
    ready = [r for r in lane.running.items if _has_slots(config, r)]
    fresh = {new.handle for new in step.fresh}
    usable = {r.handle: 0 if r.handle in fresh else _num_usable(r, worker) for r in ready}
    for handle, row in rows.items():
        assert handle in usable, f"request {handle} has too few slots for its step"
        assert row.num_drafts <= usable[handle], (
            f"request {handle} verifies {row.num_drafts} of {usable[handle]} drafts"
        )
    for oldest in [r for r in ready if r.remaining > 1][:1]:
        # An input may have to wait until another request lets go of one.
        assert oldest.handle in rows or oldest.generation.inputs, (
            f"the oldest prompt, {oldest.handle}, does not advance"
        )
    for oldest in [r for r in ready if r.remaining == 1][:1]:
        assert oldest.handle in rows or oldest.generation.inputs, (
            f"the oldest decode, {oldest.handle}, does not advance"
        )
        num_drafts = rows[oldest.handle].num_drafts
        assert num_drafts == usable[oldest.handle], f"the oldest decode, {oldest.handle}, is cut short"


def _has_slots(config: LaneConfig, request: Request) -> bool:
    """Whether every group's table reaches as far as the request's next step may write."""
    reached = request.num_computed + min(request.remaining, config.max_batched_tokens) + config.max_drafts
    tables = zip(config.groups, request.tables, strict=True)
    return all(len(table.blocks) * group.block_size >= reached for group, table in tables)


def _num_usable(request: Request, worker: Worker) -> int:
    """Drafts of a request that its worker holds and its client can use, before the last token it wants."""
    if request.remaining > 1:
        return 0
    bound = request.generation.max_drafts
    held = len(worker.held[request.handle].drafts)
    wanted = request.generation.stopping.max_tokens - request.num_emitted
    return min(held, wanted - 1, held if bound is None else bound)


class DraftCount:
    """Counts drafts apart from the scheduler, by the drafts that the worker verified and what clients were told."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._steps = Counter[tuple[int, int]]()
        """Steps of a request by (verified, accepted) drafts."""

    def check(self, step: Step, outcome: Outcome, deltas: Sequence[Delta], counters: Counters) -> None:
        """After a step. A request's last emitted token is never a draft; one that ended before is told nothing."""
        told = {delta.ticket: delta for delta in deltas}
        for row, emitted in zip(step.rows, outcome.emitted, strict=True):
            drafts, delta = self._worker.verified.get(row.handle, []), told.get(row.handle)
            if delta is None or not delta.tokens:
                continue
            pairs = zip(drafts, delta.tokens[: len(emitted) - 1], strict=False)
            truth = len(drafts), len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            counted = delta.num_drafts, delta.num_accepted
            assert counted == truth, f"request {row.handle} is told {counted} drafts, not {truth}"
            if drafts:
                self._steps[truth] += 1
        self._check_totals(counters)

    def _check_totals(self, counters: Counters) -> None:
        steps = self._steps.items()
        longest = max((verified for verified, _ in self._steps), default=0)
        assert counters.num_drafts == self._steps.total(), "steps that verified drafts"
        assert counters.draft_tokens == sum(verified * times for (verified, _), times in steps), "verified drafts"
        by_position = [sum(times for (_, accepted), times in steps if accepted > i) for i in range(longest)]
        assert counters.accepted_at == by_position, "accepted drafts by position"
        by_length = [sum(times for (_, accepted), times in steps if accepted == i) for i in range(longest + 1)]
        assert counters.accepted_lengths == (by_length if longest else []), "steps by accepted drafts"


class LookupCount:
    """Every admission is one lookup, counted once with its tokens and its miss if it has one."""

    def __init__(self) -> None:
        self._num_lookups = self._num_misses = self._query_tokens = self._hit_tokens = 0

    def check(self, lane: Scheduler, step: Step) -> None:
        """When a step is made."""
        counters, enabled = lane.counters, lane.config.prefix_caching
        before, self._num_misses = self._num_misses, counters.misses.total()
        self._num_lookups += len(step.fresh)
        self._query_tokens += sum(len(new.tokens) for new in step.fresh)
        self._hit_tokens += sum(new.num_computed for new in step.fresh)
        assert (counters.query_tokens, counters.hit_tokens) == (self._query_tokens, self._hit_tokens), "lookups"
        assert self._num_misses - before <= len(step.fresh), "a miss is counted twice"
        assert enabled or counters.misses == {Miss.DISABLED: self._num_lookups}, "misses without a cache"


class PeakCheck:
    """A lease holds no more real blocks than its largest reserve makes them at most."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, int, int], tuple[int, int]] = {}

    def note(self, proposal: Proposal) -> None:
        for reserve in proposal.reserves:
            name = proposal.pool, proposal.epoch, reserve.lease
            num_slots, num_ahead = self._most.get(name, (0, 0))
            self._most[name] = max(num_slots, reserve.num_slots), max(num_ahead, reserve.num_ahead)

    def check(self, pool: Coordinator) -> None:
        spec = pool.spec
        for lease, tables in pool.leases.tables.items():
            num_slots, num_ahead = self._most.get((spec.pool, spec.epoch, lease), (0, 0))
            for group, table in zip(spec.groups, tables, strict=True):
                held, most = len(table) - table.count(NULL_BLOCK), group.peak(num_slots, num_ahead)
                assert held <= most, f"lease {lease} holds {held} blocks of {group}, at most {most}"


def check_tables(step: Step, worker: Worker, pool: Coordinator | None) -> None:
    """What the worker can touch in its next step is held by the request's lease: nothing is given back too early.

    ``pool`` is None where the KV service was restarted since the grant.
    """
    if pool is None or pool.spec.epoch != step.epoch:
        return
    fresh = {new.handle for new in step.fresh}
    for row in step.rows:
        tables = pool.leases.tables.get(row.handle)
        if tables is None or row.handle in fresh:
            continue
        for group, index, block in worker.needed(row.handle):
            assert tables[group][index] == block, f"request {row.handle} needs block {block}, which it gave back"


def check_renewal(holdings: Sequence[Holding], content: Content, owed: Collection[bytes], worker: Worker) -> None:
    """All that is sealed is handed over: what the lost proposal sealed (``owed``), and what leases hold."""
    known = {*content}
    for holding in holdings:
        known |= {(holding.blocks[seal.group][seal.index], seal.key) for seal in holding.seals}
    assert {*owed} <= {key for _, key in known}, "a seal of the lost proposal is not handed over"
    for handle in worker.held.keys() & {holding.lease for holding in holdings}:
        tags = {(block, worker.tags[block]) for _, _, block in worker.needed(handle) if block in worker.tags}
        assert tags <= known, f"sealed blocks of lease {handle} are not handed over"


def check_rest(lane: Scheduler, coordinator: Coordinator | None) -> None:
    """All requests have ended, so every block is free or cached and both sides know it.

    ``coordinator`` is None where the KV service was restarted and not needed since.
    """
    name = lane.config.pool
    assert not lane.has_work, f"{name} has work at rest"
    assert not (lane.running.items or lane.waiting.items or lane.num_requests), f"{name} keeps ended requests"
    if coordinator is None:
        return
    assert not coordinator.leases.tables, f"leases {list(coordinator.leases.tables)} of {name} are never given back"
    census = coordinator.pool.census()
    assert census.free + census.cached == lane.config.num_blocks - 1, f"{name} at rest has {census}"
    assert lane.num_available == coordinator.pool.num_available, f"{name} believes in {lane.num_available} blocks"
    coordinator.check()
