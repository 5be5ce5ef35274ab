"""Planted bugs in what happens when workers and schedulers come and go, each one line of meaning."""

from scheduler_svc.core.cluster import Cluster
from scheduler_svc.core.fair import FairQueue
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.planting import Edit, Mutants

ELASTIC: Mutants = {
    "a draining lane gets requests": (Edit(Cluster, "_open_lanes", "name not in self.draining", "True"),),
    "a worker is let go with work that nobody can take": (
        Edit(Cluster, "may_leave", "lane is None or not lane.has_work or bool(self._open_lanes())", "True"),
    ),
    "a worker with work is kept though others could go on": (
        Edit(Cluster, "may_leave", " or bool(self._open_lanes())", ""),
    ),
    "an idle worker is never let go": (Edit(Cluster, "may_leave", "not lane.has_work", "False"),),
    "who has left is still draining": (Edit(Cluster, "leave", "self.draining.discard(worker)", "pass"),),
    "a lane is still there when its worker is gone": (
        Edit(Cluster, "leave", "self.lanes.pop(worker, None)", "self.lanes.get(worker)"),
    ),
    "a parked request cannot be given back": (
        Edit(Cluster, "fail", "self.parked.pop(handle, None) is not None", "self.parked.get(handle) is None"),
    ),
    "a parked request cannot be cancelled": (
        Edit(Cluster, "cancel", "self.parked.pop(handle, None) is not None", "False"),
    ),
    "a parked request is not parked": (Edit(Cluster, "_place", "self.parked[request.handle] = request", "pass"),),
    "a continuation may emit as much again": (
        Edit(Request, "take", "before = len(tokens) - len(self.generation.prompt)", "before = 0"),
    ),
    "a worker's death forgets the tokens it made": (
        Edit(
            Scheduler,
            "evacuate",
            "self._requests.clear()",
            "[r.tokens.__delitem__(slice(len(r.generation.prompt), None)) for r in self._requests.values()]\n"
            "    self._requests.clear()",
        ),
    ),
    "places are not given back": (
        Edit(Cluster, "forget", "self._shares.give_back(self._clients.pop(handle))", "self._clients.pop(handle)"),
    ),
    "the first in a fair queue is overtaken": (Edit(FairQueue, "__iter__", "self._head = self._first()", "pass"),),
    "what a preempted request has to do again is not counted": (
        Edit(Scheduler, "_give_back", "self._num_behind += request.num_computed", "pass"),
    ),
    "what a fence makes to be done again is not counted": (
        Edit(Scheduler, "fence", "self._num_behind += request.num_computed", "pass"),
    ),
    "a hit counts as queued": (Edit(Scheduler, "_admit", "self._num_behind -= request.num_computed", "pass"),),
}
