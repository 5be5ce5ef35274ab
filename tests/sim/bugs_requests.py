"""Planted bugs in requests, drafts, fences, ends and fairness, each one line of meaning."""

from kvcache_svc.core.coordinator import Coordinator
from scheduler_svc.core import chunking, lane, plan, room, scheduler
from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.lane import Counters
from scheduler_svc.core.misses import Misses
from scheduler_svc.core.names import Names
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.driver import Driver
from tests.sim.planting import Edit, Mutants
from tests.sim.worker import Worker

REQUESTS: Mutants = {
    # drafts, and the draft KV that depends on tokens to its right
    "chunks ignore the lookahead": (Edit(chunking, "chunk", "if 0 < left < lookahead", "if False"),),
    "drafts have no slots": (Edit(room, "num_slots", " + config.max_drafts", ""),),
    "drafts outlive a preemption": (Edit(Request, "restart", "self.num_drafts = ", ""),),
    "drafts are never verified": (Edit(Scheduler, "apply", "= num_drafts, num_final", "= 0, num_final"),),
    "a prompt's tokens are taken for drafts": (Edit(scheduler, "plan", "r.share(size, 0)", "r.share(1, size - 1)"),),
    "drafts go past max_tokens": (
        Edit(plan, "usable_drafts", "(request.num_drafts, bound)", "(request.num_drafts, 8)"),
    ),
    "a draft is verified in the last token's place": (Edit(plan, "usable_drafts", "num_emitted - 1", "num_emitted"),),
    "a client's bound on drafts is ignored": (
        Edit(plan, "usable_drafts", "min(wanted, generation.max_drafts)", "wanted"),
    ),
    "the least budget forgets the drafts": (
        Edit(chunking, "min_budget", " + max_drafts", ""),
        Edit(lane, "min_budget", " + max_drafts", ""),
    ),
    "rejected drafts count as computed": (
        Edit(Scheduler, "_emit", "num_computed += num_accepted", "num_computed += row.num_drafts"),
    ),
    "accepted drafts do not count as computed": (
        Edit(Scheduler, "_emit", "num_computed += num_accepted", "num_computed += 0"),
    ),
    "the bonus token counts as a draft": (Edit(Scheduler, "_emit", "min(taken, num_accepted)", "taken"),),
    "drafts after the end count as accepted": (Edit(Scheduler, "_emit", "min(taken, num_accepted)", "num_accepted"),),
    "drafts after the end are told": (Edit(Scheduler, "_emit", "emitted[:taken]", "emitted"),),
    "a request ends with a step's last token only": (
        Edit(Request, "take", "if token in", "if count == len(emitted) and token in"),
    ),
    "accepted drafts are counted from the second on": (
        Edit(Counters, "count_drafts", "range(num_accepted)", "range(1, num_accepted)"),
    ),
    # replays and fences
    "a replayed step is executed again": (Edit(Worker, "execute", "return last", "return self._carry_out(step)"),),
    "a step of an old epoch is executed": (Edit(Worker, "execute", "step.epoch < last.epoch", "False"),),
    "an outcome of an old epoch is applied": (
        Edit(Driver, "_is_current", "stamp(answer) == stamp(self._asked)", "stamp(answer)[0] == stamp(self._asked)[0]"),
    ),
    "a fence keeps the debts": (Edit(Scheduler, "fence", "Debts(), [], [], []", "self._debts, [], [], []"),),
    "a fence keeps the running requests": (Edit(Scheduler, "fence", "self.running.take_all()", "[]"),),
    # coming and going
    "an ended request keeps its blocks": (
        Edit(Scheduler, "_end", "self._give_back(request)", "self.running.remove(request)"),
    ),
    "a request cancelled while it is admitted keeps its blocks": (
        Edit(Scheduler, "_take", "self._owe_release(request)", "pass"),
    ),
    "blocks are given back twice": (
        Edit(Scheduler, "_owe_release", "append(request.handle)", "extend([request.handle, request.handle])"),
    ),
    "an ended request can be cancelled again": (Edit(Scheduler, "_end", "del self._requests[request.handle]", "pass"),),
    "a cancelled request still emits": (Edit(Scheduler, "apply", "request.handle not in self._requests or ", ""),),
    "the worker is not told of dropped requests": (
        Edit(Scheduler, "_give_back", "self._debts.dropped.append(request.handle)", "pass"),
    ),
    "a preempted request keeps its computed tokens": (
        Edit(Request, "restart", "self.num_computed = self", "self"),
        Edit(
            Request,
            "lease",
            "self.num_computed = self.num_final = granted.num_computed",
            "self.num_final = self.num_computed = max(self.num_computed, granted.num_computed)",
        ),
    ),
    "a preempted request keeps its block tables": (Edit(Request, "restart", "self.tables, ", "_, "),),
    "a lost worker's requests are lost": (Edit(Cluster, "leave", "lane.evacuate()", "[]"),),
    "parked requests stay parked": (Edit(Cluster, "join", "[*moved, *parked]", "moved"),),
    "a continuation starts over": (Edit(Request, "__post_init__", ", *self.generation.emitted", ""),),
    # ends
    "one token too many": (Edit(Request, "take", ">= stopping.max_tokens", "> stopping.max_tokens"),),
    "a stop token does not end": (Edit(Request, "take", "token in stopping.stop_token_ids", "token in ()"),),
    "min_tokens is ignored": (Edit(Worker, "_draw", "held.num_emitted < held.stopping.min_tokens", "False"),),
    "a token that fits no more is asked for": (
        Edit(
            room,
            "check_fits",
            "num_prompt + max_tokens > config.max_model_len",
            "num_prompt + max_tokens > config.max_model_len + 1",
        ),
    ),
    "a request that needs a block too many is accepted": (
        Edit(room, "check_fits", "> config.num_usable", "> config.num_usable + 1"),
    ),
    # lookups
    "a lookup's tokens are counted twice": (
        Edit(Scheduler, "_admit", "counters.query_tokens += ", "counters.query_tokens += 2 * "),
    ),
    "a miss is counted twice": (Edit(Scheduler, "_admit", "counters.misses[miss] += 1", "counters.misses[miss] += 2"),),
    "a lane without a cache counts no misses": (Edit(Misses, "reason", "return Miss.DISABLED", "return None"),),
    # fairness and progress
    "nothing is set aside for the oldest prompt": (
        Edit(plan, "share_budget", "min(prompts[0], max(lookahead, 1)) if prompts else 0", "0"),
    ),
    "keys of another worker's blocks are kept": (
        Edit(Names, "_chain", "request.keys_of != self.domain", "not request.keys"),
    ),
    "the budget is shared twice": (Edit(plan, "share_budget", "left -= prompt_sizes[-1]", "pass"),),
    "the head is preempted": (Edit(Scheduler, "_make_room", "self.running.items[-1]", "self.running.items[0]"),),
    "nobody is preempted": (Edit(Scheduler, "_make_room", "len(self.running) > 1", "False"),),
    "a small request overtakes a large one": (
        Edit(
            Scheduler,
            "_admissible",
            "num_blocks > spare:\n            break",
            "num_blocks > spare:\n            continue",
        ),
    ),
    "the pool lets a small request overtake": (Edit(Coordinator, "_reserve_all", "None if denied else ", ""),),
    "a denied request is never tried again": (
        Edit(Scheduler, "_admissible", "request.denied_at == available", "request.denied_at is not None"),
    ),
    "nobody is left a block to grow": (Edit(Scheduler, "_admissible", " - watermark", ""),),
    "what the running claim is not set aside": (
        Edit(Scheduler, "_admissible", "(self.running.items if config.has_windows else growing)", "growing"),
        Edit(
            Scheduler,
            "_return_overdrawn",
            "[*self.running.items, *(request for request, _ in leased)]",
            "[request for request, _ in leased]",
        ),
    ),
    "a lease that was hit too little is kept": (
        Edit(Scheduler, "_return_overdrawn", "while spare < 0 and", "while False and"),
    ),
    "hits in a window count as had": (
        Edit(room, "claim", "table.num_held if group.window is None else table.num_own", "table.num_held"),
    ),
    "priorities are upside down": (
        Edit(scheduler, "rank_of", "(request.generation.priority", "(-request.generation.priority"),
    ),
}
