"""What each client was served by one lane, in tokens: the measure of fairness."""

from dataclasses import dataclass

GENERATED_WEIGHT = 2
"""What a generated token counts, where one of the prompt counts 1: as in Sheng et al. (fair.py), after the prices that
are asked for them. A generated token takes an iteration's row of its own, and reads all KV of its request for it."""


@dataclass(slots=True, eq=False, kw_only=True)
class Account:
    """``served`` tokens, weighted: the prompts' as they are computed for the first time, and those generated.

    What is found in the cache costs nothing, nor does what a preemption or another worker's death makes the lane
    compute again, nor a draft that is rejected. ``num_requests`` are on the lane, waiting or running.
    """

    served: int = 0
    num_requests: int = 0
