"""How much of a prompt is served from the cache, where it is known exactly: one request after another, no faults."""

from collections.abc import Sequence
from itertools import takewhile

from augury.types import EndReason
from scheduler_svc.core.lane import KeyLookahead
from tests.sim.host import Host
from tests.sim.oracle import right_text
from tests.sim.plan import Plan, Shape
from tests.sim.simulation import Result, tally_of
from tests.sim.world import Trace, World

SECONDS_PER_REQUEST = 2.0


def simulate_reuse(plan: Plan, trace: Trace | None = None) -> Result:
    """Run a serial plan. Raises AssertionError where a request reuses more or less than it could.

    Requests that will fail are left out: what they computed last is rightly not kept.
    """
    world, (memory,) = World(plan, trace), plan.shape.memories
    host = Host(world, 0)
    host.connect()
    world.clock.run(SECONDS_PER_REQUEST, lambda: host.at_rest)
    proven = _num_proven(plan.shape)
    earlier: list[tuple[bytes, list[int]]] = []
    for number in range(plan.load.num_clients):
        generation = world.clients.write(number)
        if right_text(generation).reason is EndReason.FAILED:
            continue
        client = world.clients.submit(generation)
        tokens = [*generation.prompt, *client.received]
        world.clock.run(world.clock.now + SECONDS_PER_REQUEST, lambda: host.at_rest)
        assert client.ended is not None, f"{generation.request_id} does not end"
        same_salt = [written for salt, written in earlier if salt == generation.cache_salt]
        wanted = min(reusable(tokens, same_salt, memory.block_size, proven), len(generation.prompt))
        assert client.num_cached == wanted, f"{client.num_cached} tokens are reused, {wanted} could be"
        earlier.append((generation.cache_salt, [*generation.prompt, *client.received]))
    assert not host.counters[0].num_refused, "a worker does not recognise what it sealed"
    return Result(tally=tally_of(world, [host]))


def reusable(tokens: Sequence[int], earlier: Sequence[Sequence[int]], block_size: int, proven: int) -> int:
    """Tokens of whole blocks that some earlier sequence sealed and ``tokens`` may hit (mtp_semantics rules D and E).

    A block counts where both sequences go on alike for ``proven`` tokens after it; the last token of a sequence that
    ended was never computed, and at least max(1, lookahead) tokens of a reader stay to be computed.
    """
    kept = max(1, proven)
    common = [min(_num_common(tokens, other) - proven, len(other) - kept, len(tokens) - kept) for other in earlier]
    return max(max(common, default=0) // block_size, 0) * block_size


def _num_proven(shape: Shape) -> int:
    """Tokens after a block that its name covers: the lookahead, rounded up to whole blocks where keys are plain."""
    (memory,), lookahead = shape.memories, shape.speculation.num_modules
    if shape.key_lookahead is KeyLookahead.AUTO:
        return lookahead
    return -(-lookahead // memory.block_size) * memory.block_size


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
