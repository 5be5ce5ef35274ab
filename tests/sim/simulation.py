"""One seed from beginning to end: a phase with faults, then a calm one in which everything must finish."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.sim.checks import check_rest
from tests.sim.faults import Faults
from tests.sim.host import Host
from tests.sim.plan import Plan
from tests.sim.world import Trace, World

MAX_EVENTS = 60_000
"""Far beyond any run that goes on; a loop without virtual time would stop here."""

SECONDS_PER_TOKEN = 0.006
"""Virtual time within which, in calm, some request surely advances by one token: a few round trips and a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run that held all invariants saw."""

    tally: Counter[str]


def simulate(plan: Plan, trace: Trace | None = None) -> Result:
    """Run one plan. Raises AssertionError, or whatever the cores raise, where something is wrong."""
    world = World(plan, trace)
    world.trace("plan", plan)
    hosts = [Host(world, index) for index in range(len(plan.shape.memories))]
    faults = Faults(world, hosts)
    world.clients.invite()
    for host in hosts:
        host.connect()
    faults.start()
    world.clock.run(plan.load.span, lambda: False)
    faults.stop()
    world.calm()
    _finish(world, hosts)
    return Result(tally=tally_of(world, hosts))


def _finish(world: World, hosts: list[Host]) -> None:
    load = world.plan.load
    bound = world.clock.now + 1.0 + load.num_clients * world.plan.shape.max_model_len * SECONDS_PER_TOKEN
    world.clock.run(bound, lambda: _at_rest(world, hosts) or world.clock.num_events > MAX_EVENTS)
    assert world.clock.num_events <= MAX_EVENTS, "events without end"
    assert not world.clients.open, f"requests {list(world.clients.open)} did not finish in calm"
    assert not world.clients.num_to_come, "clients were kept out"
    assert not world.cluster.draining, f"{world.cluster.draining} never leave"
    assert _at_rest(world, hosts), "lanes have work without requests"
    for host in hosts:
        assert host.driver is not None and host.driver.lane is not None
        check_rest(host.driver.lane, world.kv.pools.get(host.name))


def _at_rest(world: World, hosts: list[Host]) -> bool:
    clients = world.clients
    return not (clients.open or clients.num_to_come) and all(host.at_rest for host in hosts)


def tally_of(world: World, hosts: Sequence[Host]) -> Counter[str]:
    """Faults by kind and what the lanes counted."""
    for counters in (counters for host in hosts for counters in host.counters):
        world.tally["iterations"] += counters.num_iterations
        world.tally["preemptions"] += counters.num_preemptions
        world.tally["hit tokens"] += counters.hit_tokens
        world.tally["tokens"] += counters.generation_tokens
        world.tally["refused hits"] += counters.num_refused
        world.tally["drafts"] += counters.draft_tokens
        world.tally["accepted drafts"] += sum(counters.accepted_at)
    return world.tally + world.clients.ends
