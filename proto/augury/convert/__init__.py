"""Wire messages to data types and back: the only package that touches both."""

from augury.convert.kvcache import (
    grant_from_wire,
    grant_to_wire,
    pool_from_wire,
    pool_to_wire,
    proposal_from_wire,
    proposal_to_wire,
    refusal_to_wire,
)
from augury.convert.scheduler import (
    deltas_from_wire,
    deltas_to_wire,
    description_from_wire,
    description_to_wire,
    hello_from_wire,
    hello_to_wire,
    submit_from_wire,
    submit_to_wire,
)
from augury.convert.worker import (
    outcome_from_wire,
    outcome_to_wire,
    step_from_wire,
    step_to_wire,
    tags_from_wire,
    tags_to_wire,
)

__all__ = [
    "deltas_from_wire",
    "deltas_to_wire",
    "description_from_wire",
    "description_to_wire",
    "grant_from_wire",
    "grant_to_wire",
    "hello_from_wire",
    "hello_to_wire",
    "outcome_from_wire",
    "outcome_to_wire",
    "pool_from_wire",
    "pool_to_wire",
    "proposal_from_wire",
    "proposal_to_wire",
    "refusal_to_wire",
    "step_from_wire",
    "step_to_wire",
    "submit_from_wire",
    "submit_to_wire",
    "tags_from_wire",
    "tags_to_wire",
]
