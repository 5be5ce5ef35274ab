"""What must hold of every proposal, step and rest, seen from outside the cores."""

from collections.abc import Sequence

from augury.types import Grant, Proposal, Step
from kvcache_svc.core.coordinator import Coordinator
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler


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


def check_step(lane: Scheduler, step: Step) -> None:
    """Budget and batch are kept, and the oldest prompt and the oldest decode advance (chunking.min_budget)."""
    config, sizes = lane.config, {row.handle: row.num_new for row in step.rows}
    assert sum(sizes.values()) <= config.max_batched_tokens, "a step over the token budget"
    assert len(sizes) <= config.max_running, "a step over the batch size"
    slots, size = config.num_prefill_lookahead, config.block_size
    ready = [r for r in lane.running.items if len(r.tokens) + slots <= len(r.blocks) * size]
    _check_advances([r for r in ready if r.remaining > 1], sizes)
    _check_advances([r for r in ready if r.remaining == 1], sizes)


def _check_advances(ready: Sequence[Request], sizes: dict[int, int]) -> None:
    assert not ready or ready[0].handle in sizes, f"the oldest request, {ready[0].handle}, does not advance"


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
