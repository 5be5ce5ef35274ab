"""The real scheduler and KV cores in a loop, with a worker whose next token is a function of the tokens before it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from augury.types import (
    Delta,
    Ended,
    EndReason,
    Generation,
    Grant,
    NewRequest,
    Outcome,
    PoolSpec,
    Proposal,
    Row,
    SamplingParams,
    Step,
    StopParams,
)
from kvcache_svc.core.coordinator import Coordinator
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler

VOCAB = 1000


def next_token(tokens: Sequence[int]) -> int:
    """The oracle: what follows ``tokens``, whatever batch, cache or worker they meet."""
    digest = blake2b(b",".join(b"%d" % token for token in tokens), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def continuation(prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """The text a request must get."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tuple(tokens[len(prompt) :])


def generation(
    prompt: Sequence[int],
    *,
    emitted: Sequence[int] = (),
    priority: int = 0,
    salt: bytes = b"",
    max_drafts: int | None = None,
    **stopping: Any,
) -> Generation:
    """Four tokens after ``prompt``, unless ``stopping`` says otherwise with the fields of StopParams."""
    return Generation(
        request_id="r",
        prompt=tuple(prompt),
        emitted=tuple(emitted),
        sampling=SamplingParams(temperature=0.0),
        stopping=replace(StopParams(max_tokens=4), **stopping),
        priority=priority,
        cache_salt=salt,
        max_drafts=max_drafts,
    )


def lane_config(*, budget: int = 64, lookahead: int = 0, **fields: Any) -> LaneConfig:
    """A small worker: 64 blocks of four tokens, unless ``fields`` of LaneConfig say otherwise."""
    small = LaneConfig(
        pool="w",
        fingerprint="f",
        num_blocks=65,
        block_size=4,
        max_model_len=4096,
        max_batched_tokens=budget,
        max_running=16,
        num_prefill_lookahead=lookahead,
    )
    return replace(small, **fields)


@dataclass(slots=True)
class Held:
    """A request as the worker holds it."""

    new: NewRequest
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_drafts: int = 0


class Worker:
    """Executes steps, and asserts what every worker may rely on.

    After each token it holds as many drafts as it can; of those verified in request h's next steps, as many are right
    as ``right[h]`` says for each step in turn, and none afterwards.
    """

    def __init__(self, config: LaneConfig) -> None:
        self.config = config
        self.tags: dict[int, bytes] = {}
        self.held: dict[int, Held] = {}
        self.failing: set[int] = set()
        self.right: dict[int, list[int]] = {}

    def execute(self, step: Step) -> Outcome:
        assert sum(row.num_new + row.num_drafts for row in step.rows) <= self.config.max_batched_tokens
        assert len({row.handle for row in step.rows}) == len(step.rows)
        for handle in step.released:
            self.held.pop(handle, None)
        self.tags.update(step.sealed)
        refused = tuple(new.handle for new in step.fresh if not self._take(new))
        failed = tuple(row.handle for row in step.rows if row.handle in self.failing)
        emitted = tuple(() if row.handle in {*refused, *failed} else self._run(row) for row in step.rows)
        held = [self.held.get(row.handle) for row in step.rows]
        return Outcome(
            epoch=step.epoch,
            seq=step.seq,
            emitted=emitted,
            num_drafts=tuple(one.num_drafts if one else 0 for one in held),
            num_final=tuple(self._num_final(one) if one else 0 for one in held),
            refused=refused,
            failed=failed,
        )

    def _take(self, new: NewRequest) -> bool:
        assert new.handle not in self.held, "a request is fresh twice"
        assert new.num_computed < len(new.tokens), "a hit covers everything"
        num_hits = len(new.hit_keys)
        assert new.num_computed == num_hits * self.config.block_size
        if tuple(self.tags.get(block) for block in new.blocks[:num_hits]) != new.hit_keys:
            return False
        self._overwrite(new.blocks[num_hits:])
        self.held[new.handle] = Held(new, list(new.tokens), list(new.blocks), new.num_computed)
        return True

    def _run(self, row: Row) -> tuple[int, ...]:
        held = self.held[row.handle]
        held.blocks.extend(row.new_blocks)
        self._overwrite(row.new_blocks)
        end = held.num_computed + row.num_new
        assert held.num_computed < end <= len(held.tokens)
        assert row.num_drafts <= held.num_drafts, "drafts are asked for that nobody made"
        assert end == len(held.tokens) or not row.num_drafts, "drafts behind an unfinished prompt"
        for position in range(held.num_computed, end + row.num_drafts):
            assert held.blocks[position // self.config.block_size] not in self.tags, "a step writes a sealed block"
        held.num_computed = end
        if end < len(held.tokens):
            assert len(held.tokens) - end >= self.config.num_prefill_lookahead, "a chunk ends within the lookahead"
            return ()
        right = self.right.get(row.handle) if row.num_drafts else None
        num_accepted = min(right.pop(0), row.num_drafts) if right else 0
        emitted = continuation(held.tokens, num_accepted + 1)
        held.tokens.extend(emitted)
        held.num_computed += num_accepted
        held.num_drafts = self.config.max_drafts
        return emitted

    def _num_final(self, held: Held) -> int:
        """Draft KV is final where the lookahead after it is known."""
        return max(min(held.num_computed, len(held.tokens) - self.config.num_prefill_lookahead), 0)

    def _overwrite(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.tags.pop(block, None)


@dataclass(slots=True)
class Story:
    """What one client saw."""

    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    num_cached: int = 0
    ended: Ended | None = None


class Harness:
    """One lane: scheduler, pool and worker. ``step`` holds what is in flight between ``begin`` and ``finish``."""

    def __init__(self, config: LaneConfig | None = None) -> None:
        self.config = config or lane_config()
        self.spec = PoolSpec(
            pool=self.config.pool,
            incarnation="i",
            fingerprint=self.config.fingerprint,
            epoch=1,
            num_blocks=self.config.num_blocks,
            block_size=self.config.block_size,
        )
        self.kv = Coordinator(self.spec)
        self.worker = Worker(self.config)
        self.scheduler = Scheduler(self.config, epoch=1, num_available=self.kv.pool.num_available)
        self.stories: dict[int, Story] = {}
        self.steps: list[Step] = []
        self.proposals: list[Proposal | None] = []

    def submit(self, wanted: Generation) -> int:
        handle = len(self.stories) + 1
        self.scheduler.submit(Request(handle=handle, generation=wanted, arrival=handle))
        self.stories[handle] = Story(wanted.prompt, list(wanted.emitted))
        return handle

    def cancel(self, handle: int) -> None:
        delta = self.scheduler.cancel(handle)
        self.record([delta] if delta else [])

    def propose(self) -> Grant | None:
        proposal = self.scheduler.propose()
        self.proposals.append(proposal)
        if proposal is None:
            return None
        grant = self.kv.step(proposal)
        self.kv.check()
        return grant

    def begin(self) -> Step | None:
        """Up to the moment when a step is in flight."""
        step = self.scheduler.dispatch(self.propose())
        if step:
            self.steps.append(step)
        return step

    def finish(self, step: Step) -> list[Delta]:
        deltas = self.scheduler.apply(self.worker.execute(step))
        self.record(deltas)
        return deltas

    def iterate(self) -> list[Delta]:
        step = self.begin()
        return self.finish(step) if step else []

    def run(self, max_iterations: int = 2000) -> None:
        """Until everything has ended and the pool has everything back."""
        for _ in range(max_iterations):
            if not self.scheduler.has_work:
                return
            self.iterate()
        raise AssertionError(f"not done after {max_iterations} iterations")

    def fence(self) -> None:
        """The worker, or what the scheduler knew of it, is lost; its memory is not."""
        self.spec = replace(self.spec, epoch=self.spec.epoch + 1)
        self.kv.reopen(self.spec)
        self.worker.held.clear()
        self.scheduler.fence(self.spec.epoch, self.kv.pool.num_available)

    def record(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            story = self.stories[delta.ticket]
            assert story.ended is None, "something came after the end"
            story.tokens.extend(delta.tokens)
            story.num_cached, story.ended = delta.num_cached, delta.ended

    def assert_whole(self) -> None:
        """Nothing runs, nothing is leaked, the worker holds nothing it was not told to keep."""
        census = self.kv.pool.census()
        assert (census.open, census.sealed) == (0, 0)
        assert not self.kv.leases.tables
        assert self.scheduler.num_requests == 0

    def assert_told(self, handle: int, reason: EndReason = EndReason.LENGTH) -> None:
        """The request ended as it should, and every token is the oracle's."""
        story = self.stories[handle]
        assert story.ended is not None
        assert story.ended.reason is reason
        assert tuple(story.tokens) == continuation(story.prompt, len(story.tokens))
