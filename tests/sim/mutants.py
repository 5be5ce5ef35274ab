"""All planted bugs; the simulation must find every one of them."""

from tests.sim.bugs_blocks import BLOCKS
from tests.sim.bugs_elastic import ELASTIC
from tests.sim.bugs_encoder import ENCODER
from tests.sim.bugs_requests import REQUESTS
from tests.sim.planting import Mutants

MAX_SEEDS = 400
"""Within so many every mutant is found; most are in the first few."""

MUTANTS: Mutants = {**BLOCKS, **REQUESTS, **ENCODER, **ELASTIC}
