"""How much of a prompt is served from the cache, where it is known exactly: one request after another, no faults."""

from collections.abc import Sequence
from dataclasses import dataclass

from augury.geometry import KvGroup, scheduler_block
from augury.types import EndReason
from kvcache_svc.core.coordinator import Coordinator
from scheduler_svc.core.lane import KeyLookahead
from tests.sim.host import Host
from tests.sim.plan import Plan
from tests.sim.simulation import Result, tally_of
from tests.sim.worker import Worker
from tests.sim.world import Trace, World

SECONDS_PER_REQUEST = 2.0
LOST_SHARES = (0.0, 0.05, 0.2)
"""Of the blocks that are sealed, after each request."""

Tokens = Sequence[int]


def simulate_reuse(plan: Plan, trace: Trace | None = None) -> Result:
    """Run a serial plan. Raises AssertionError where a request reuses more or less than it could.

    Requests that will fail are left out: what they computed last is rightly not kept.
    """
    world, shape = World(plan, trace), plan.shape
    host, rng = Host(world, 0), plan.random("losses")
    host.connect()
    world.clock.run(SECONDS_PER_REQUEST, lambda: host.at_rest)
    cache = Cache(shape.memories[0].groups, shape.speculation.num_modules, shape.key_lookahead)
    share = rng.choice(LOST_SHARES)
    for number in range(plan.load.num_clients):
        generation = world.clients.write(number)
        if world.clients.text(generation).reason is EndReason.FAILED:
            continue
        client = world.clients.submit(generation)
        tokens = [*generation.prompt, *client.received]
        world.clock.run(world.clock.now + SECONDS_PER_REQUEST, lambda: host.at_rest)
        assert client.ended is not None, f"{generation.request_id} does not end"
        hit = cache.look_up(generation.cache_salt, tokens)
        wanted = min(hit.num_tokens, len(generation.prompt))
        assert client.num_cached == wanted, f"{client.num_cached} tokens are reused, {wanted} could be"
        cache.keep(generation.cache_salt, [*generation.prompt, *client.received], hit.num_sealed)
        _lose(world.kv.pools[host.name], host.worker, cache, [b for b in host.worker.tags if rng.random() < share])
    assert not host.counters[0].num_refused, "a worker does not recognise what it sealed"
    return Result(tally=tally_of(world, [host]))


def _lose(pool: Coordinator, worker: Worker, cache: "Cache", blocks: Sequence[int]) -> None:
    """The pool forgets the content of ``blocks``, wherever else it may be."""
    for block in blocks:
        pool.pool.forget(worker.tags[block])
        writer = worker.writers[block]
        assert writer is not None
        cache.lose(writer.salt, writer.tokens, writer.group, writer.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Tokens of a hit, and how many entries of each group's table its request must not seal."""

    num_tokens: int
    num_sealed: tuple[int, ...]


class Cache:
    """What requests leave behind in a pool that never evicts, and what of it others may take over: rules D, E and F.

    A block is kept as all the tokens that it is known by: those up to its end, and with drafts those that its KV
    depends on, as many as the lookahead; rounded up to whole blocks where keys are plain.
    """

    def __init__(self, groups: Sequence[KvGroup], lookahead: int, keys: KeyLookahead) -> None:
        self._groups = groups
        self._lookahead = lookahead
        self._proven = [_num_proven(group, lookahead, keys) for group in groups]
        self._blocks: list[set[tuple[bytes, tuple[int, ...]]]] = [set() for _ in groups]

    def keep(self, salt: bytes, tokens: Tokens, num_sealed: Sequence[int]) -> None:
        """A request of ``tokens`` ended, the last of which was not computed."""
        for index, group in enumerate(self._groups):
            num_final = len(tokens) - (max(1, self._lookahead) if group.has_drafts else 1)
            num_blocks = min(num_final, len(tokens) - self._proven[index]) // group.block_size
            self._blocks[index].update(self._name(salt, tokens, index, i) for i in range(num_sealed[index], num_blocks))

    def lose(self, salt: bytes, tokens: Tokens, index: int, block: int) -> None:
        """A block of a group, in a sequence of ``tokens``, is there no more."""
        self._blocks[index].discard(self._name(salt, tokens, index, block))

    def look_up(self, salt: bytes, tokens: Tokens) -> Hit:
        """At least max(1, lookahead) of the known ``tokens`` stay to be computed."""
        found = [self._found(salt, tokens, index) for index in range(len(self._groups))]
        every = set(range(len(self._groups)))
        ends = range(0, len(tokens) - max(1, self._lookahead) + 1, scheduler_block(self._groups))
        reached = {end: {index for index in every if self._reaches(found[index], index, end)} for end in ends}
        common, inexact = max((end for end in ends if reached[end] == every), default=0), [0] * len(self._groups)
        for rebuilt, group in enumerate(self._groups):
            if group.num_rebuilt is not None:
                others = [end for end in ends if reached[end] >= every - {rebuilt}]
                start = max((end for end in others if end + group.num_rebuilt <= max(others)), default=0)
                if start > common:
                    common, inexact[rebuilt] = start, group.num_rebuilt
        own = [group.num_blocks(common + rows) for group, rows in zip(self._groups, inexact, strict=True)]
        return Hit(num_tokens=common, num_sealed=tuple(own))

    def _found(self, salt: bytes, tokens: Tokens, index: int) -> list[bool]:
        """Which blocks of a group whose names are known are there."""
        num_named = (len(tokens) - self._proven[index]) // self._groups[index].block_size
        return [self._name(salt, tokens, index, block) in self._blocks[index] for block in range(num_named)]

    def _reaches(self, found: Sequence[bool], index: int, end: int) -> bool:
        """Whether all KV is there that rows from ``end`` on can read in a group."""
        group, first, last = self._groups[index], 0, end // self._groups[index].block_size
        if group.window is not None:
            first = max(0, last - group.num_blocks(group.window - 1 + group.num_retained))
        return last <= len(found) and all(found[first:last])

    def _name(self, salt: bytes, tokens: Tokens, index: int, block: int) -> tuple[bytes, tuple[int, ...]]:
        return salt, tuple(tokens[: (block + 1) * self._groups[index].block_size + self._proven[index]])


def _num_proven(group: KvGroup, lookahead: int, keys: KeyLookahead) -> int:
    """Tokens after a block that its name covers."""
    if not group.has_drafts:
        return 0
    return lookahead if keys is KeyLookahead.AUTO else group.num_blocks(lookahead) * group.block_size
