"""A request may be cancelled at any moment: its blocks come back, its neighbour never notices."""

from augury.types import EndReason
from scheduler_svc.core.lane import LaneConfig
from tests.scheduler.harness import Harness, generation, lane_config


def with_neighbour(config: LaneConfig | None = None) -> tuple[Harness, int]:
    lane = Harness(config)
    return lane, lane.submit(generation([7, 8, 9], max_tokens=12))


def assert_unharmed(lane: Harness, neighbour: int, cancelled: int) -> None:
    lane.run()
    lane.assert_told(neighbour)
    assert len(lane.stories[neighbour].tokens) == 12
    lane.assert_told(cancelled, EndReason.CANCELLED)
    lane.assert_whole()


def test_while_it_waits() -> None:
    lane, neighbour = with_neighbour(lane_config(max_running=1))
    lane.iterate()
    waiting = lane.submit(generation([1, 2]))
    lane.iterate()
    lane.cancel(waiting)
    assert all(new.handle != waiting for step in lane.steps for new in step.fresh)
    assert_unharmed(lane, neighbour, waiting)


def test_between_its_proposal_and_dispatch() -> None:
    lane, neighbour = with_neighbour()
    lane.iterate()
    entering = lane.submit(generation(range(9)))
    grant = lane.propose()
    lane.cancel(entering)
    step = lane.scheduler.dispatch(grant)
    assert step is not None
    assert not step.fresh
    assert entering in lane.kv.leases.tables
    lane.finish(step)
    assert_unharmed(lane, neighbour, entering)


def test_between_a_denied_proposal_and_dispatch() -> None:
    lane, neighbour = with_neighbour(lane_config(num_blocks=13, block_size=4))
    lane.iterate()
    large = lane.submit(generation(range(46), max_tokens=2))
    grant = lane.propose()
    assert grant is not None
    assert grant.reserves == (None,)
    lane.cancel(large)
    step = lane.scheduler.dispatch(grant)
    assert step is not None
    lane.finish(step)
    assert_unharmed(lane, neighbour, large)


def test_while_its_growth_is_proposed() -> None:
    lane, neighbour = with_neighbour(lane_config(block_size=4))
    growing = lane.submit(generation([1, 2, 3, 4], max_tokens=9))
    lane.iterate()
    grant = lane.propose()
    assert grant is not None
    assert [granted and list(map(len, granted.blocks)) for granted in grant.reserves] == [[1]]
    lane.cancel(growing)
    step = lane.scheduler.dispatch(grant)
    assert step is not None
    assert growing in step.released
    assert growing not in [row.handle for row in step.rows]
    lane.finish(step)
    assert_unharmed(lane, neighbour, growing)


def test_while_its_step_is_in_flight() -> None:
    lane, neighbour = with_neighbour()
    running = lane.submit(generation([1, 2]))
    step = lane.begin()
    assert step is not None
    lane.cancel(running)
    assert running in lane.kv.leases.tables
    deltas = lane.finish(step)
    assert [delta.ticket for delta in deltas] == [neighbour]
    assert running in lane.kv.leases.tables
    assert_unharmed(lane, neighbour, running)


def test_in_flight_and_refused_or_failed() -> None:
    lane, neighbour = with_neighbour()
    lane.submit(generation(range(20), max_tokens=1))
    lane.iterate()
    lane.iterate()
    lane.worker.tags.clear()
    refused, failing = lane.submit(generation(range(20))), lane.submit(generation([1, 2]))
    lane.worker.failing.add(failing)
    step = lane.begin()
    assert step is not None
    lane.cancel(refused)
    lane.cancel(failing)
    assert [delta.ticket for delta in lane.finish(step)] == [neighbour]
    assert_unharmed(lane, neighbour, refused)
    lane.assert_told(failing, EndReason.CANCELLED)


def test_after_its_end_nothing_happens() -> None:
    lane, neighbour = with_neighbour()
    lane.run()
    assert lane.scheduler.cancel(neighbour) is None
    assert lane.scheduler.cancel(neighbour + 1) is None
    lane.assert_whole()


def test_after_a_preemption() -> None:
    lane, neighbour = with_neighbour(lane_config(num_blocks=7, block_size=4))
    victim = lane.submit(generation([1, 2, 3], max_tokens=12))
    while not lane.scheduler.counters.num_preemptions:
        lane.iterate()
    assert not any(r.handle == victim for r in lane.scheduler.running.items)
    lane.cancel(victim)
    assert_unharmed(lane, neighbour, victim)
