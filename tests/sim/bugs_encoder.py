"""Bugs around encoder inputs."""

from scheduler_svc.core.encoder import EncoderCache
from scheduler_svc.core.scheduler import Scheduler
from tests.sim.planting import Edit, Mutants

ENCODER: Mutants = {
    "a chunk runs into an input that is not there": (
        Edit(EncoderCache, "admit", "if limit is not None and limit < span.start + size:", "if False:"),
    ),
    "an input is encoded beyond the budget": (Edit(EncoderCache, "_plan", "or cost > left", ""),),
    "an input is encoded beyond the room": (Edit(EncoderCache, "_plan", "item.length > room or ", ""),),
    "an input is held for a place yet to be reached": (
        Edit(EncoderCache, "release", "item.start < num_computed < item.start", "num_computed < item.start"),
    ),
    "a preempted request keeps its inputs": (Edit(Scheduler, "_give_back", "if self._encoder:", "if False:"),),
    "the worker is not told what to forget": (Edit(EncoderCache, "take_dropped", "tuple(self._dropped)", "()"),),
}
