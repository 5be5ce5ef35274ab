"""The real scheduler and KV cores in a loop, with a worker whose next token is a function of the tokens before it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from hypothesis import strategies as st

from augury.geometry import NULL_BLOCK, KvGroup
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
from scheduler_svc.core.chunking import min_budget
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


def generation(prompt: Sequence[int], *, salt: bytes = b"", **fields: Any) -> Generation:
    """Four tokens after ``prompt``, unless ``fields`` of StopParams or Generation say otherwise."""
    stopping = {name: fields.pop(name) for name in StopParams.__slots__ if name in fields}
    plain = Generation(
        request_id="r",
        prompt=tuple(prompt),
        sampling=SamplingParams(temperature=0.0),
        stopping=replace(StopParams(max_tokens=4), **stopping),
        cache_salt=salt,
    )
    return replace(plain, **fields)


def lane_config(
    *, budget: int = 64, lookahead: int = 0, block_size: int = 4, groups: Sequence[KvGroup] = (), **fields: Any
) -> LaneConfig:
    """A small worker: 64 blocks of four tokens, unless ``fields`` of LaneConfig say otherwise.

    Without ``groups`` it has one with full attention and, where it looks ahead, with draft layers.
    """
    small = LaneConfig(
        pool="w",
        fingerprint="f",
        num_blocks=65,
        groups=tuple(groups) or (KvGroup(block_size=block_size, has_drafts=lookahead > 0),),
        max_model_len=4096,
        max_batched_tokens=budget,
        max_running=16,
        num_prefill_lookahead=lookahead,
    )
    return replace(small, **fields)


Shape = tuple[int, int | None, bool]
"""Block size, window and whether there are draft layers, of one group."""

shapes = st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.none() | st.integers(2, 9), st.booleans())


def small_lane(
    *, shapes: Sequence[Shape], lookahead: int, max_drafts: int = 0, extra: int = 0, **fields: Any
) -> LaneConfig:
    """A worker with groups of ``shapes``. Those with a window and draft layers can be rebuilt from a tail where there
    are others; ``extra`` tokens of budget come on top of the least.
    """
    mixed = len({drafts for _, _, drafts in shapes}) > 1
    groups = [
        KvGroup(
            block_size=size,
            window=window,
            has_drafts=drafts and lookahead > 0,
            num_retained=max(lookahead - 1, 0) if drafts and window else 0,
            num_rebuilt=lookahead * (window - 1) if drafts and window and mixed and lookahead else None,
        )
        for size, window, drafts in shapes
    ]
    budget = min_budget(lookahead, max_drafts) + extra
    return lane_config(budget=budget, lookahead=lookahead, max_drafts=max_drafts, groups=groups, **fields)


@dataclass(slots=True)
class Held:
    """A request as the worker holds it."""

    new: NewRequest
    tokens: list[int]
    tables: list[list[int]]
    num_computed: int
    num_drafts: int = 0


class Worker:
    """Executes steps, and asserts what every worker may rely on.

    After each token it holds as many drafts as it can; of those verified in request h's next steps, as many are right
    as ``right[h]`` says for each step in turn, and none afterwards. ``slots[block, offset]`` are the tokens up to the
    position whose KV is there.
    """

    def __init__(self, config: LaneConfig) -> None:
        self.config = config
        self.tags: dict[int, bytes] = {}
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
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
        if any(self.tags.get(block) != key for block, key in new.hits):
            return False
        hit = {block for block, _ in new.hits}
        self._overwrite(block for table in new.blocks for block in table if block not in hit)
        self.held[new.handle] = Held(new, list(new.tokens), list(map(list, new.blocks)), new.num_computed)
        return True

    def _run(self, row: Row) -> tuple[int, ...]:
        held = self.held[row.handle]
        for table, blocks in zip(held.tables, row.new_blocks, strict=bool(row.new_blocks)):
            table.extend(blocks)
            self._overwrite(blocks)
        start, end = held.num_computed, held.num_computed + row.num_new
        assert start < end <= len(held.tokens)
        assert row.num_drafts <= held.num_drafts, "drafts are asked for that nobody made"
        assert end == len(held.tokens) or not row.num_drafts, "drafts behind an unfinished prompt"
        self._read(held)
        right = self.right.get(row.handle) if row.num_drafts else None
        num_accepted = min(right.pop(0), row.num_drafts) if right else 0
        emitted = continuation(held.tokens, num_accepted + 1) if end == len(held.tokens) else ()
        wrong = (None,) * (row.num_drafts - num_accepted)
        self._write(held, [*held.tokens[start:end], *emitted[:-1], *wrong])
        held.num_computed = end
        if not emitted:
            assert len(held.tokens) - end >= self.config.num_prefill_lookahead, "a chunk ends within the lookahead"
            return ()
        held.tokens.extend(emitted)
        held.num_computed += num_accepted
        held.num_drafts = self.config.max_drafts
        return emitted

    def _read(self, held: Held) -> None:
        """All that the first new position sees is the request's own."""
        for group, table in zip(self.config.groups, held.tables, strict=True):
            if group.has_drafts and group.window is not None:
                continue
            first = max(held.num_computed - (group.window or held.num_computed + 1) + 1, 0)
            for position in range(first, held.num_computed):
                slot = table[position // group.block_size], position % group.block_size
                assert self.slots[slot] == tuple(held.tokens[: position + 1]), "a step reads the KV of other tokens"

    def _write(self, held: Held, new: Sequence[int | None]) -> None:
        """The KV of ``new`` tokens, None for a draft that is rejected."""
        sequence = [*held.tokens[: held.num_computed], *new]
        for group, table in zip(self.config.groups, held.tables, strict=True):
            for position in range(held.num_computed, len(sequence)):
                block, offset = table[position // group.block_size], position % group.block_size
                assert block != NULL_BLOCK, "a step writes into the null block"
                assert block not in self.tags, "a step writes a sealed block"
                known = tuple(token for token in sequence[: position + 1] if token is not None)
                self.slots[block, offset] = known if len(known) == position + 1 else ()

    def _num_final(self, held: Held) -> int:
        """Draft KV is final where the lookahead after it is known."""
        return max(min(held.num_computed, len(held.tokens) - self.config.num_prefill_lookahead), 0)

    def _overwrite(self, blocks: Iterable[int]) -> None:
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
            groups=self.config.groups,
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

    def renew(self) -> None:
        """The KV service is lost and starts again without any memory of its own."""
        holdings, content = self.scheduler.renew(list(self.worker.tags.items()))
        self.kv = Coordinator(self.spec, {key: block for block, key in content}, holdings)
        self.kv.check()
        self.scheduler.num_available = self.kv.pool.num_available

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
