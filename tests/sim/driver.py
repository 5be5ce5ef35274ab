"""One lane's way through its iterations over lossy links: the twin of scheduler_svc's loop."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from augury.errors import FencedError
from augury.types import Grant, Outcome, PoolSpec, Proposal, Step
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.checks import DraftCount, LookupCount, OrderCheck, check_renewal, check_step, check_tables
from tests.sim.messages import Answer, AskTags, Open, Opened, Question, Refusal, Tags, stamp
from tests.sim.worker import Worker
from tests.sim.world import World

TIMEOUT_SECONDS = 0.02
"""A question not answered for so long is asked again."""

PAUSE_SECONDS = 0.0001
COMPUTE_SECONDS = (0.0005, 0.003)


class Driver:
    """Asks one question at a time, again and again until it is answered; a refusal leads to a new epoch, or, where the
    KV service has forgotten the pool, to the same one again with all that is held.
    """

    def __init__(
        self, world: World, config: LaneConfig, spec: PoolSpec, worker: Worker, released: Callable[[], None]
    ) -> None:
        self.lane: Scheduler | None = None
        self.kv_link = world.link()
        self._worker_link = world.link()
        self._world = world
        self._config = config
        self._spec = spec
        self._worker = worker
        self._released = released
        self._drained: set[int] | None = None
        self._hints: tuple[tuple[int, bytes], ...] = ()
        self._drafts = DraftCount(worker)
        self._lookups = LookupCount()
        self._order = OrderCheck()
        self._numbers = count(1)
        self._adopts = world.plan.faults.adopts
        self._asked: Question | None = None
        self._owed: set[bytes] = set()
        self._stopped = False
        self._rng = world.plan.random(f"compute/{spec.incarnation}")
        self._renewing = False
        self._ask(AskTags(epoch=0, number=next(self._numbers)))  # LaneLoop.probe

    @property
    def at_rest(self) -> bool:
        leaving = self._config.pool in self._world.cluster.draining
        return self._asked is None and self.lane is not None and not (self.lane.has_work or leaving)

    def stop(self) -> None:
        """Say and hear nothing more. What is under way may still arrive."""
        self._stopped, self._asked = True, None

    def drain(self) -> None:
        """The worker wants to leave, and gets nothing new."""
        items = [*self.lane.running.items, *self.lane.waiting.items] if self.lane else []
        self._drained = {request.handle for request in items}
        self.wake()

    @property
    def spec(self) -> PoolSpec:
        return self._spec

    def fence(self) -> None:
        """Begin a new epoch, whatever is under way."""
        self._spec = replace(self._spec, epoch=next(self._world.epochs))
        self._renewing = False
        self._ask(Open(spec=self._spec, number=next(self._numbers)))

    def wake(self) -> None:
        """Between two steps: leave, if that may be (LaneLoop.run), or begin an iteration if there is work."""
        if self._asked is not None or self.lane is None or self._stopped:
            return
        if self._world.cluster.may_leave(self._config.pool):
            self._released()
        elif self.lane.has_work:
            self._propose(self.lane)

    def _propose(self, lane: Scheduler) -> None:
        proposal = self._order.proposal(lane, lane.propose)
        there = {request.handle for request in (*lane.running.items, *lane.waiting.items)}
        assert self._drained is None or there <= self._drained, f"{self._config.pool} drains, but gets requests"
        assert self._drained is None or not self._world.other_lanes(self._config.pool), f"{self._config.pool} stays"
        if proposal is not None:
            self._ask(proposal)
        else:
            self._dispatch(lane, None)

    def _dispatch(self, lane: Scheduler, grant: Grant | None) -> None:
        step = lane.dispatch(grant)
        if step is not None:
            check_step(lane, step, self._worker)
            check_tables(step, self._worker, self._world.kv.pools.get(self._config.pool))
            self._lookups.check(lane, step)
            self._order.step(lane, step, self._world.kv.pools.get(self._config.pool))
            self._ask(step)
            return
        assert grant is not None, f"{self._config.pool} has work but does nothing"
        self._world.clock.after(PAUSE_SECONDS, self.wake)

    # --- questions ---

    def _ask(self, question: Question) -> None:
        self._asked = question
        self._transmit(question)

    def _transmit(self, question: Question) -> None:
        if self._asked is not question:
            return
        self._world.trace(self._config.pool, question)
        if isinstance(question, Step | AskTags):
            self._worker_link.send(question, self._reach_worker)
        else:
            self.kv_link.send(question, self._reach_kv)
        self._world.clock.after(TIMEOUT_SECONDS, lambda: self._transmit(question))

    def _reach_kv(self, question: Open | Proposal) -> None:
        answer = self._world.kv.receive(question)
        if answer is not None:
            self.kv_link.send(answer, self._hear)

    def _reach_worker(self, question: Step | AskTags) -> None:
        if isinstance(question, AskTags):
            answer: Answer = self._tags(question)
        else:
            try:
                answer = self._worker.execute(question)
            except FencedError as error:
                answer = Refusal(stamp=stamp(question), unknown=False, error=str(error))
        self._world.clock.after(self._rng.uniform(*COMPUTE_SECONDS), lambda: self._worker_link.send(answer, self._hear))

    def _tags(self, question: AskTags) -> Tags:
        """What the worker's blocks hold; at times it does not say."""
        known = self._worker.tags.items() if self._rng.random() < self._world.plan.faults.tells_tags else ()
        return Tags(epoch=question.epoch, number=question.number, content=tuple(known))

    # --- answers ---

    def _hear(self, answer: Answer) -> None:
        if not self._is_current(answer):
            self._world.tally["stale answer"] += 1
            return
        self._world.trace(self._config.pool, answer)
        asked, self._asked = self._asked, None
        match asked, answer:
            case Proposal(), Refusal(unknown=True) if self._rng.random() < self._adopts:
                self._owed = {seal.key for seal in asked.seals}
                self._ask(AskTags(epoch=self._spec.epoch, number=next(self._numbers)))
            case _, Refusal():
                assert answer.unknown, f"{self._config.pool} is refused {asked}: {answer.error}"
                self._world.tally["refusal"] += 1
                self.fence()
            case AskTags(), Tags() if self.lane is None:
                self._hints = answer.content
                self.fence()
            case AskTags(), Tags():
                self._renew(answer)
            case Open(), Opened():
                self._open(answer)
            case Proposal(), Grant():
                self._order.grant(self._joined, asked, answer)
                self._dispatch(self._joined, answer)
            case Step(), Outcome():
                deltas = self._joined.apply(answer)
                self._drafts.check(asked, answer, deltas, self._joined.counters)
                self._world.publish(deltas)
                self.wake()

    def _is_current(self, answer: Answer) -> bool:
        return self._asked is not None and stamp(answer) == stamp(self._asked)

    @property
    def _joined(self) -> Scheduler:
        assert self.lane is not None
        return self.lane

    def _open(self, opened: Opened) -> None:
        if self.lane is None:
            self.lane = Scheduler(self._config, opened.epoch, opened.num_available)
            self.lane.memory.learn(self._hints)
            self._world.publish(self._world.cluster.join(self.lane))
            self._world.wake_all()
        elif self._renewing:
            self._world.tally["renewal"] += 1
            self.lane.num_available = opened.num_available
        else:
            self._world.tally["fence"] += 1
            self.lane.fence(opened.epoch, opened.num_available)
        self.wake()

    def _renew(self, tags: Tags) -> None:
        """Open the pool again under its epoch, with the leases in it.

        Proposals are numbered from 1 again, so nothing that was sent over the earlier stream may still arrive.
        """
        self.kv_link.break_off()
        holdings, content = self._joined.renew(list(tags.content))
        self._renewing = True
        check_renewal(holdings, content, self._owed, self._worker)
        renewal = Open(
            spec=self._spec,
            number=next(self._numbers),
            holdings=tuple(holdings),
            content=tuple(content),
            whole=bool(tags.content),
        )
        self._ask(renewal)
