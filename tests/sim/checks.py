"""What must hold of every proposal, step and rest, seen from outside the cores."""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from augury.types import Delta, Grant, Outcome, Proposal, Step
from kvcache_svc.core.coordinator import Coordinator
from scheduler_svc.core.lane import Counters
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.worker import Worker


class OrderCheck:
    """Made before ``propose``, asked after it and when the grant is there."""

    def __init__(self, lane: Scheduler) -> None:
        self._lane = lane
        self._running = list(lane.running.items)
        self._entering: set[int] = set()

    def proposal(self, proposal: Proposal | None) -> None:
        """Preemption takes the last in policy order and spares the first; admission takes the first without gaps."""
        kept, waiting = self._lane.running.items, self._lane.waiting.items
        for queue in (kept, waiting):
            assert queue == sorted(queue, key=self._rank), "a queue is out of order"
        assert kept == self._running[: len(kept)], "a request was preempted for a later one"
        assert bool(kept) == bool(self._running), "the head of the order was preempted"
        running = {request.handle for request in kept}
        reserves = proposal.reserves if proposal else ()
        entering = [reserve.lease for reserve in reserves if reserve.lease not in running]
        assert entering == [request.handle for request in waiting[: len(entering)]], "a waiting request was overtaken"
        self._entering = set(entering)

    def grant(self, proposal: Proposal, grant: Grant) -> None:
        """Those who enter are granted without gaps."""
        asked = zip(proposal.reserves, grant.reserves, strict=True)
        granted = [answer is not None for reserve, answer in asked if reserve.lease in self._entering]
        assert granted == sorted(granted, reverse=True), "a waiting request was overtaken in the pool"

    def _rank(self, request: Request) -> tuple[int, int]:
        by_priority = self._lane.config.policy is Policy.PRIORITY
        return request.generation.priority if by_priority else 0, request.arrival


def check_step(lane: Scheduler, step: Step, worker: Worker) -> None:
    """Budget and batch are kept, the oldest prompt advances and the oldest decode verifies every draft it can use
    (chunking.min_budget), and nobody verifies more.
    """
    config, rows = lane.config, {row.handle: row for row in step.rows}
    num_tokens = sum(row.num_new + row.num_drafts for row in step.rows)
    assert num_tokens <= config.max_batched_tokens, "a step over the token budget"
    assert len(rows) <= config.max_running, "a step over the batch size"
    slots, size = config.max_drafts, config.block_size
    ready = [r for r in lane.running.items if len(r.tokens) + slots <= len(r.blocks) * size]
    fresh = {new.handle for new in step.fresh}
    usable = {r.handle: 0 if r.handle in fresh else _num_usable(r, worker) for r in ready}
    for handle, row in rows.items():
        assert row.num_drafts <= usable[handle], (
            f"request {handle} verifies {row.num_drafts} of {usable[handle]} drafts"
        )
    for oldest in [r for r in ready if r.remaining > 1][:1]:
        assert oldest.handle in rows, f"the oldest prompt, {oldest.handle}, does not advance"
    for oldest in [r for r in ready if r.remaining == 1][:1]:
        assert oldest.handle in rows, f"the oldest decode, {oldest.handle}, does not advance"
        num_drafts = rows[oldest.handle].num_drafts
        assert num_drafts == usable[oldest.handle], f"the oldest decode, {oldest.handle}, is cut short"


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
