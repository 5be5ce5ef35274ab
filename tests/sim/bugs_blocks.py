"""Planted bugs in blocks, keys, hits, windows and the taking over of leases, each one line of meaning."""

from augury.geometry import KvGroup
from augury.keys import KeyDomain
from kvcache_svc.core import hits
from kvcache_svc.core.coordinator import Coordinator
from kvcache_svc.core.groups import FullAttention, SlidingWindow
from kvcache_svc.core.leases import Leases
from kvcache_svc.core.pool import BlockPool
from scheduler_svc.core import room, scheduler
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.names import Names
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.table import Table
from tests.sim import kv
from tests.sim.planting import Edit, Mutants
from tests.sim.worker import Worker

BLOCKS: Mutants = {
    # immutability
    "a block is sealed before it is full": (
        Edit(scheduler, "owe_seals", "min(num_final // group", "min((num_final + 1) // group"),
    ),
    "a block is sealed once it is computed": (
        Edit(scheduler, "owe_seals", "request.num_final if group.has_drafts else request", "request"),
    ),
    "blocks without drafts wait for the frontier": (
        Edit(scheduler, "owe_seals", " if group.has_drafts else request.num_computed", ""),
    ),
    "seals come a block late": (Edit(scheduler, "owe_seals", "(start + 1) * group", "(start + 2) * group"),),
    "a refused request seals its blocks": (
        Edit(Scheduler, "apply", "{*outcome.refused, *outcome.failed}", "{*outcome.failed}"),
    ),
    "a hit is not referenced": (Edit(Coordinator, "_admit", "self.pool.touch(table, group)", "pass"),),
    "hits are referenced group by group, between allocations": (
        Edit(
            Coordinator,
            "_admit",
            "self.pool.touch(table, group)\n    self._append(hit.tables, counts)",
            "self.pool.touch(table, group)\n        table += self.pool.allocate(counts[group], group)",
        ),
    ),
    "room is counted as if hits were not idle": (
        Edit(Coordinator, "_admit", " - self.pool.num_idle(chain.from_iterable(hit.tables))", ""),
    ),
    "an evicted block stays findable": (Edit(BlockPool, "_evict", "self._drop_from_index(key)", "pass"),),
    "a cached block is freed but stays findable": (
        Edit(BlockPool, "_retire", "self._cached[block] = self.now", "self._free.append(block)"),
    ),
    "cached blocks are used up before free ones": (
        Edit(
            BlockPool,
            "allocate",
            "self._free.pop() if self._free else self._evict()",
            "self._evict() if self._cached else self._free.pop()",
        ),
    ),
    "growth skips a block": (
        Edit(Request, "share", "new_blocks=self.undelivered", "new_blocks=tuple(b[1:] for b in self.undelivered)"),
    ),
    "growth comes one token late": (Edit(room, "_is_short", "> request.capacity", "- 1 > request.capacity"),),
    # keys
    "a hit may cover the whole prompt": (
        Edit(Names, "_num_hits", "(len(request.tokens) - self._lookahead)", "len(request.tokens)"),
    ),
    "the salt is no part of the root": (Edit(Names, "_chain", "request.generation.cache_salt", 'b""'),),
    "a key does not cover its parent": (Edit(KeyDomain, "extend", "keys[-1] if keys else root", "root"),),
    "a key does not cover its lookahead": (
        Edit(KeyDomain, "extend", "tokens[start:end]", "tokens[start : start + size]"),
    ),
    "keys cover no lookahead": (Edit(Names, "__init__", ", lookahead=reach)", ")"),),
    "drafts go by plain keys where the target does": (
        Edit(Names, "__init__", "reaches.index(config.key_reach(group))", "0"),
    ),
    "a block is named by the first key inside it": (
        Edit(Names, "of", "(block + 1 + names.margin) * names.stride - 1", "(block + names.margin) * names.stride"),
    ),
    "groups share names": (Edit(Names, "of", "group_key(chain", "(lambda key, _: key)(chain"),),
    "a hit by plain keys gives up a block too few": (
        Edit(
            LaneConfig,
            "key_margin",
            "-(-(self.num_prefill_lookahead - self.key_reach(group)) // group.block_size)",
            "(self.num_prefill_lookahead - self.key_reach(group)) // group.block_size",
        ),
    ),
    "a hit by plain keys gives up nothing": (Edit(LaneConfig, "key_margin", "not group.has_drafts", "True"),),
    "all groups give up as many blocks as the first": (
        Edit(LaneConfig, "key_margin", "// group.block_size", "// self.groups[0].block_size"),
    ),
    "nothing is looked up": (Edit(Names, "lookup", "not any(numbers)", "True"),),
    "nothing is sealed": (Edit(Scheduler, "_owe_seals", "self.config.prefix_caching", "False"),),
    # tags
    "tags are not sent": (Edit(Scheduler, "propose", "tags=debts.tags, ", ""),),
    "the worker does not check tags": (Edit(Worker, "_recognises", "self.tags.get(block) == key", "True"),),
    "the worker does not clear tags": (Edit(Worker, "_claim", "self.tags.pop(block, None)", "pass"),),
    "the worker is not told what hits must be": (Edit(Names, "hits", "hits.extend(", "list("),),
    "a refused key is not forgotten": (Edit(Coordinator, "step", "self.pool.forget(key)", "pass"),),
    # windows
    "the retained tail is forgotten": (Edit(KvGroup, "num_skipped", " - self.num_retained", ""),),
    "blocks die a token early": (Edit(KvGroup, "num_skipped", "self.window + 1", "self.window + 2"),),
    "blocks never die": (Edit(Coordinator, "_free_passed", "self.pool.release(table[start:end])", "return"),),
    "the dead are given back and kept": (
        Edit(Coordinator, "_free_passed", "table[start:end] = [NULL_BLOCK] * (end - start)", "pass"),
    ),
    "the dead are given back before they are sealed": (
        Edit(
            Coordinator,
            "step",
            "for key in proposal.forgotten:",
            "self._free_all_passed(proposal.reserves)\n    for key in proposal.forgotten:",
        ),
    ),
    "a dead block is sealed": (
        Edit(scheduler, "owe_seals", "max(table.num_sealed, table.num_dead)", "table.num_sealed"),
    ),
    "the scheduler does not count the dead": (
        Edit(Request, "grow", "max(table.num_dead, group.num_skipped(self.num_computed))", "table.num_dead"),
    ),
    "a window gets all its slots at once": (
        Edit(KvGroup, "table_length", "num_slots if self.window is None else min(num_slots, num_reached)", "num_slots"),
    ),
    "a step may reach less far than its chunk": (
        Edit(room, "num_ahead", "min(request.remaining, config.max_batched_tokens)", "1"),
    ),
    "a step's drafts have no slots in a window": (Edit(room, "num_ahead", " + config.max_drafts", ""),),
    "the peak forgets the slots ahead": (Edit(KvGroup, "peak", " + num_ahead", ""),),
    "a run may lack its first block": (
        Edit(
            SlidingWindow,
            "_gap",
            "num_skipped(end * self.group.block_size)",
            "num_skipped(end * self.group.block_size) + 1",
        ),
    ),
    "a run must be a block longer": (
        Edit(
            SlidingWindow,
            "_gap",
            "first = self.group.num_skipped(end * self.group.block_size)",
            "first = max(self.group.num_skipped(end * self.group.block_size) - 1, 0)",
        ),
    ),
    "a run that touches zero does not count": (
        Edit(
            SlidingWindow,
            "_gap",
            "keys, find =",
            "if end * self.group.block_size < self.group.window:\n        return end - 1\n    keys, find =",
        ),
    ),
    "only the rightmost run counts": (
        Edit(SlidingWindow, "longest", "tokens = gap * size - gap * size % self._stride", "tokens = 0"),
    ),
    "a window's hit is cut anywhere": (Edit(SlidingWindow, "longest", "tokens -= tokens % self._stride", "pass"),),
    "a full hit is cut anywhere": (Edit(FullAttention, "longest", "limit - limit % self._stride", "limit"),),
    "groups are asked once": (Edit(hits, "_settle", "while limit != before:", "for _ in range(1):"),),
    # rebuilt drafts
    "a rebuilt tail is sealed": (Edit(hits, "_num_sealed", "(group.num_rebuilt or 0)", "0"),),
    "a hit leaves no tail to rebuild": (Edit(hits, "_extent", "max(most - tail, 0)", "most"),),
    "nothing is rebuilt": (Edit(hits, "_extent", "if start > common", "if False"),),
    "a tail is rebuilt for nothing": (Edit(hits, "_extent", "if start > common", "if True"),),
    # leases taken over
    "leases taken over are not sealed": (Edit(Names, "holding", "seals=tuple(seals)", "seals=()"),),
    "a lease is not handed over": (Edit(Scheduler, "renew", "self.running.items]", "self.running.items[1:]]"),),
    "the dead are handed over": (
        Edit(Table, "live", "(NULL_BLOCK,) * self.num_dead", "tuple(self.blocks[:self.num_dead])"),
    ),
    "hits are not handed over": (Edit(Table, "sealed", "[*self.hits, *", "[*"),),
    "owed releases outlive the pool": (
        Edit(Scheduler, "renew", "Debts(", "Debts(releases=debts.releases, num_returning=debts.num_returning, "),
    ),
    "owed tags are no content": (Edit(Scheduler, "renew", "{**dict(tags), **dict(debts.tags)}", "dict(tags)"),),
    "proposals are not numbered anew": (
        Edit(Scheduler, "renew", "self._proposal_seq, self._growing, self._entering = 0, [], []", "pass"),
    ),
    "a new service does not take leases over": (
        Edit(Coordinator, "__init__", "self.pool.adopt(self.leases.tables.values(), keys)", "pass"),
    ),
    "blocks taken over are all open": (Edit(BlockPool, "_adopt", "key is not None", "False"),),
    "content that outlived is not restored": (
        Edit(Coordinator, "__init__", "self.pool.restore(content or {})", "pass"),
    ),
    "content goes before leases": (Edit(BlockPool, "restore", "self._refs[block] == 0 and ", ""),),
    "the registry knows better than the worker": (
        Edit(
            kv,
            "reconcile",
            "for block, key in tags:\n        content.setdefault(key, block)",
            "content = {**dict((key, block) for block, key in tags), **registered}",
        ),
    ),
    "opening twice is refused": (Edit(kv, "open_pool", "if spec == known.spec:", "if False:"),),
    # replays and fences
    "a replayed proposal is carried out again": (Edit(Leases, "replay", "return self._last", "return None"),),
    "a proposal of an old epoch is carried out": (Edit(Leases, "replay", "epoch != self.epoch", "False"),),
    "a fence keeps the leases": (
        Edit(Leases, "fence", "self.epoch, self.tables, self._last = epoch, {}, None", "self.epoch = epoch"),
    ),
}
