"""One lane's way through its iterations over lossy links: the twin of scheduler_svc's loop."""

from dataclasses import replace

from augury.errors import FencedError
from augury.types import Grant, Outcome, PoolSpec, Proposal, Step
from scheduler_svc.core.lane import LaneConfig
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.checks import DraftCount, OrderCheck, check_step
from tests.sim.messages import Answer, Opened, Question, Refusal, stamp
from tests.sim.worker import Worker
from tests.sim.world import World

TIMEOUT_SECONDS = 0.02
"""A question not answered for so long is asked again."""

PAUSE_SECONDS = 0.0001
COMPUTE_SECONDS = (0.0005, 0.003)


class Driver:
    """Asks one question at a time, again and again until it is answered; a refusal leads to a new epoch."""

    def __init__(self, world: World, config: LaneConfig, spec: PoolSpec, worker: Worker) -> None:
        self.lane: Scheduler | None = None
        self.kv_link = world.link()
        self._worker_link = world.link()
        self._world = world
        self._config = config
        self._spec = spec
        self._worker = worker
        self._drafts = DraftCount(worker)
        self._asked: Question | None = None
        self._stopped = False
        self._rng = world.plan.random(f"compute/{spec.incarnation}")
        self.fence()

    @property
    def at_rest(self) -> bool:
        return self._asked is None and self.lane is not None and not self.lane.has_work

    def stop(self) -> None:
        """Say and hear nothing more. What is under way may still arrive."""
        self._stopped, self._asked = True, None

    def fence(self) -> None:
        """Begin a new epoch, whatever is under way."""
        self._spec = replace(self._spec, epoch=next(self._world.epochs))
        self._ask(self._spec)

    def wake(self) -> None:
        """Begin an iteration if there is work and none is under way."""
        if self._asked is None and self.lane is not None and not self._stopped and self.lane.has_work:
            self._propose(self.lane)

    def _propose(self, lane: Scheduler) -> None:
        self._order = OrderCheck(lane)
        proposal = lane.propose()
        self._order.proposal(proposal)
        if proposal is not None:
            self._ask(proposal)
        else:
            self._dispatch(lane, None)

    def _dispatch(self, lane: Scheduler, grant: Grant | None) -> None:
        step = lane.dispatch(grant)
        if step is not None:
            check_step(lane, step, self._worker)
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
        if isinstance(question, Step):
            self._worker_link.send(question, self._reach_worker)
        else:
            self.kv_link.send(question, self._reach_kv)
        self._world.clock.after(TIMEOUT_SECONDS, lambda: self._transmit(question))

    def _reach_kv(self, question: PoolSpec | Proposal) -> None:
        answer = self._world.kv.receive(question)
        if answer is not None:
            self.kv_link.send(answer, self._hear)

    def _reach_worker(self, step: Step) -> None:
        try:
            answer: Answer = self._worker.execute(step)
        except FencedError as error:
            answer = Refusal(stamp=stamp(step), error=str(error))
        self._world.clock.after(self._rng.uniform(*COMPUTE_SECONDS), lambda: self._worker_link.send(answer, self._hear))

    # --- answers ---

    def _hear(self, answer: Answer) -> None:
        if not self._is_current(answer):
            self._world.tally["stale answer"] += 1
            return
        self._world.trace(self._config.pool, answer)
        asked, self._asked = self._asked, None
        match asked, answer:
            case _, Refusal():
                self._world.tally["refusal"] += 1
                self.fence()
            case PoolSpec(), Opened():
                self._open(answer)
            case Proposal(), Grant():
                self._order.grant(asked, answer)
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
            self._world.publish(self._world.cluster.join(self.lane))
        else:
            self._world.tally["fence"] += 1
            self.lane.fence(opened.epoch, opened.num_available)
        self.wake()
