"""Planted bugs, each one line of meaning; the simulation must find every one of them."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import dedent
from types import FunctionType, ModuleType

from kvcache_svc.core.coordinator import Coordinator
from kvcache_svc.core.leases import Leases
from kvcache_svc.core.pool import BlockPool
from scheduler_svc.core import chunking, lane, scheduler
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.lane import Counters
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.driver import Driver
from tests.sim.worker import Worker

MAX_SEEDS = 400
"""Within so many every mutant is found; most are in the first few."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function ``owner.name`` the text ``old``, which occurs once, becomes ``new``."""

    owner: type | ModuleType
    name: str
    old: str
    new: str


MUTANTS: dict[str, tuple[Edit, ...]] = {
    # blocks and their immutability
    "a block is sealed before it is full": (
        Edit(Scheduler, "_owe_seals", "request.num_final //", "(request.num_final + 1) //"),
    ),
    "a refused request seals its blocks": (
        Edit(Scheduler, "apply", "{*outcome.refused, *outcome.failed}", "{*outcome.failed}"),
    ),
    "a hit is not referenced": (Edit(Coordinator, "_reserve", "self.pool.touch(hit)", "pass"),),
    "room is counted as if hits were not idle": (Edit(Coordinator, "_reserve", " - self.pool.num_idle(hit)", ""),),
    "an evicted block stays findable": (Edit(BlockPool, "_evict", "self._drop_from_index(key)", "pass"),),
    "a cached block is freed but stays findable": (
        Edit(BlockPool, "_retire", "self._cached[block] = None", "self._free.append(block)"),
    ),
    "cached blocks are used up before free ones": (
        Edit(
            BlockPool,
            "allocate",
            "self._free.pop() if self._free else self._evict()",
            "self._evict() if self._cached else self._free.pop()",
        ),
    ),
    "growth skips a block": (Edit(scheduler, "_row", "request.num_delivered :", "request.num_delivered + 1 :"),),
    "growth comes one token late": (
        Edit(Scheduler, "_short_of_slots", "len(r.tokens) + slots", "len(r.tokens) - 1 + slots"),
    ),
    # keys and hits
    "a hit may cover the whole prompt": (
        Edit(Scheduler, "_lookup_keys", "(len(request.tokens) - 1)", "len(request.tokens)"),
    ),
    "the salt is no part of the root": (Edit(Scheduler, "_names", "request.generation.cache_salt", 'b""'),),
    "a key does not cover its parent": (Edit(scheduler, "extend_keys", "keys[-1] if keys else root", "root"),),
    "a key does not cover its lookahead": (
        Edit(scheduler, "extend_keys", "tokens[end - block_size : end + lookahead]", "tokens[end - block_size : end]"),
    ),
    "nothing is looked up": (Edit(Scheduler, "_lookup_keys", "not self.config.prefix_caching", "True"),),
    "nothing is sealed": (Edit(Scheduler, "_owe_seals", "not self.config.prefix_caching", "True"),),
    "tags are not sent": (Edit(Scheduler, "propose", "tags=debts.tags, ", ""),),
    "the worker does not check tags": (Edit(Worker, "_recognises", "self.tags.get(block) == key", "True"),),
    "the worker does not clear tags": (Edit(Worker, "_claim", "self.tags.pop(block, None)", "pass"),),
    "a refused key is not forgotten": (Edit(Coordinator, "step", "self.pool.forget(key)", "pass"),),
    # drafts, and the draft KV that depends on tokens to its right
    "chunks ignore the lookahead": (Edit(chunking, "chunk", "if 0 < left < lookahead", "if False"),),
    "a block is sealed once it is computed": (
        Edit(Scheduler, "_owe_seals", "request.num_final", "request.num_computed"),
    ),
    "keys cover no lookahead": (Edit(Scheduler, "_names", "config.key_reach", "0"),),
    "a hit by plain keys gives up a block too few": (
        Edit(Scheduler, "_names", "config.key_margin :", "max(config.key_margin - 1, 0) :"),
    ),
    "a hit by plain keys gives up nothing": (Edit(Scheduler, "_names", "config.key_margin :", ":"),),
    "drafts have no slots": (
        Edit(Scheduler, "_reserve", "len(request.tokens) + self.config.max_drafts", "len(request.tokens)"),
    ),
    "drafts outlive a preemption": (Edit(Request, "restart", "self.num_drafts = ", ""),),
    "drafts are never verified": (Edit(Scheduler, "apply", "num_drafts, num_final\n", "0, num_final\n"),),
    "a prompt's tokens are taken for drafts": (Edit(Scheduler, "_plan", "(size, 0)", "(1, size - 1)"),),
    "drafts go past max_tokens": (
        Edit(scheduler, "_usable_drafts", "(request.num_drafts, bound)", "(request.num_drafts, 8)"),
    ),
    "a draft is verified in the last token's place": (
        Edit(scheduler, "_usable_drafts", "num_emitted - 1", "num_emitted"),
    ),
    "a client's bound on drafts is ignored": (
        Edit(scheduler, "_usable_drafts", "min(wanted, generation.max_drafts)", "wanted"),
    ),
    "the least budget forgets the drafts": (
        Edit(chunking, "min_budget", " + max_drafts", ""),
        Edit(lane, "min_budget", " + max_drafts", ""),
    ),
    "rejected drafts count as computed": (
        Edit(Scheduler, "_emit", "num_computed += len(emitted) - 1", "num_computed += row.num_drafts"),
    ),
    "accepted drafts do not count as computed": (
        Edit(Scheduler, "_emit", "num_computed += len(emitted) - 1", "num_computed += 0"),
    ),
    "the bonus token counts as a draft": (Edit(Scheduler, "_emit", "min(taken, len(emitted) - 1)", "taken"),),
    "drafts after the end count as accepted": (
        Edit(Scheduler, "_emit", "min(taken, len(emitted) - 1)", "len(emitted) - 1"),
    ),
    "drafts after the end are told": (Edit(Scheduler, "_emit", "emitted[:taken]", "emitted"),),
    "a request ends with a step's last token only": (Edit(Scheduler, "_emit", "break", "continue"),),
    "accepted drafts are counted from the second on": (
        Edit(Counters, "count_drafts", "range(num_accepted)", "range(1, num_accepted)"),
    ),
    # replays and fences
    "a replayed proposal is carried out again": (Edit(Leases, "replay", "return self._last", "return None"),),
    "a proposal of an old epoch is carried out": (Edit(Leases, "replay", "epoch != self.epoch", "False"),),
    "a replayed step is executed again": (Edit(Worker, "execute", "return last", "return self._carry_out(step)"),),
    "a step of an old epoch is executed": (Edit(Worker, "execute", "step.epoch < last.epoch", "False"),),
    "an outcome of an old epoch is applied": (
        Edit(Driver, "_is_current", "stamp(answer) == stamp(self._asked)", "stamp(answer)[0] == stamp(self._asked)[0]"),
    ),
    "a fence keeps the debts": (Edit(Scheduler, "fence", "Debts(), [], [], []", "self._debts, [], [], []"),),
    "a fence keeps the running requests": (Edit(Scheduler, "fence", "self.running.take_all()", "[]"),),
    "a fence keeps the leases": (
        Edit(Leases, "fence", "self.epoch, self.tables, self._last = epoch, {}, None", "self.epoch = epoch"),
    ),
    # coming and going
    "an ended request keeps its blocks": (
        Edit(Scheduler, "_end", "self._give_back(request)", "self.running.remove(request)"),
    ),
    "a request cancelled while it is admitted keeps its blocks": (
        Edit(Scheduler, "_take", "self._owe_release(request.handle, len(granted.blocks))", "pass"),
    ),
    "blocks are given back twice": (
        Edit(Scheduler, "_owe_release", "releases.append(handle)", "releases.extend([handle, handle])"),
    ),
    "an ended request can be cancelled again": (Edit(Scheduler, "_end", "del self._requests[request.handle]", "pass"),),
    "a cancelled request still emits": (Edit(Scheduler, "apply", "request.handle not in self._requests or ", ""),),
    "the worker is not told of dropped requests": (
        Edit(Scheduler, "_give_back", "self._debts.dropped.append(request.handle)", "pass"),
    ),
    "a preempted request keeps its computed tokens": (
        Edit(Request, "restart", "self.num_computed = self", "self"),
        Edit(Scheduler, "_admit", "num_hits, num_hits * size", "num_hits, max(request.num_computed, num_hits * size)"),
    ),
    "a preempted request keeps its block table": (Edit(Request, "restart", "self.blocks = []", "pass"),),
    "a lost worker's requests are lost": (Edit(Cluster, "leave", "lane.evacuate()", "[]"),),
    "parked requests stay parked": (Edit(Cluster, "join", "self._replace(parked)", "[]"),),
    "a continuation starts over": (Edit(Request, "__post_init__", ", *self.generation.emitted", ""),),
    # ends
    "one token too many": (Edit(Scheduler, "_end_reason", ">= stopping.max_tokens", "> stopping.max_tokens"),),
    "a stop token does not end": (Edit(Scheduler, "_end_reason", "token in stopping.stop_token_ids", "token in ()"),),
    "min_tokens is ignored": (Edit(Worker, "_draw", "held.num_emitted < held.stopping.min_tokens", "False"),),
    "a token that fits no more is asked for": (
        Edit(scheduler, "check_fits", "num_prompt + max_tokens > max_len", "num_prompt + max_tokens > max_len + 1"),
    ),
    # fairness and progress
    "nothing is set aside for the oldest prompt": (
        Edit(scheduler, "share_budget", "min(prompts[0], max(lookahead, 1)) if prompts else 0", "0"),
    ),
    "keys of another worker's blocks are kept": (
        Edit(Scheduler, "submit", "request.keys, request.denied_at = [], None", "request.denied_at = None"),
    ),
    "the budget is shared twice": (Edit(scheduler, "share_budget", "left -= prompt_sizes[-1]", "pass"),),
    "the head is preempted": (Edit(Scheduler, "_make_room", "self.running.items[-1]", "self.running.items[0]"),),
    "nobody is preempted": (Edit(Scheduler, "_make_room", "len(self.running) > 1", "False"),),
    "a small request overtakes a large one": (
        Edit(
            Scheduler,
            "_admissible",
            "num_blocks > room:\n            break",
            "num_blocks > room:\n            continue",
        ),
    ),
    "the pool lets a small request overtake": (Edit(Coordinator, "_reserve_all", "new and denied", "False"),),
    "a denied request is never tried again": (
        Edit(
            Scheduler,
            "_admissible",
            "request.denied_at == self.num_available and not self._debts.num_returning",
            "request.denied_at is not None",
        ),
    ),
    "priorities are upside down": (
        Edit(scheduler, "rank_of", "(request.generation.priority", "(-request.generation.priority"),
    ),
}


@contextmanager
def planted(edits: tuple[Edit, ...]) -> Iterator[None]:
    """The code with ``edits`` made, each in another function. Raises ValueError for text that does not occur once."""
    originals = [(edit, vars(edit.owner)[edit.name]) for edit in edits]
    edited = [_edited(edit, original) for edit, original in originals]
    try:
        for edit, function in zip(edits, edited, strict=True):
            setattr(edit.owner, edit.name, function)
        yield
    finally:
        for edit, original in originals:
            setattr(edit.owner, edit.name, original)


def _edited(edit: Edit, function: FunctionType) -> object:
    source = dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise ValueError(f"{edit.name} does not hold {edit.old!r} once; its mutant needs another text")
    namespace: dict[str, object] = {}
    exec(source.replace(edit.old, edit.new), function.__globals__, namespace)
    return namespace[edit.name]
