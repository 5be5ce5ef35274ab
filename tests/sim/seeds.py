"""Many seeds, on every core."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import Pool

from augury.errors import AuguryError
from tests.sim.plan import draw_plan, serial_plan
from tests.sim.reuse import simulate_reuse
from tests.sim.simulation import Result, simulate
from tests.sim.world import Trace

BUGS = (AssertionError, AuguryError, LookupError, ValueError, TypeError, AttributeError)
"""What a wrong core or a broken invariant raises."""

REUSE_EVERY = 3
CHUNK = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A seed in which something is wrong."""

    seed: int
    error: str


def run_seed(seed: int, trace: Trace | None = None) -> Result:
    """The run with faults and, for some seeds, the serial one. Raises one of BUGS where something is wrong."""
    if seed % REUSE_EVERY == 0:
        simulate_reuse(serial_plan(seed), trace)
    return simulate(draw_plan(seed), trace)


def try_seed(seed: int) -> Result | Failure:
    try:
        return run_seed(seed)
    except BUGS as error:
        return Failure(seed=seed, error=f"{type(error).__name__}: {error}")


def try_seeds(seeds: Iterable[int]) -> Iterator[Result | Failure]:
    """What each seed brought, in order, from one process per core."""
    with Pool() as pool:
        yield from pool.imap(try_seed, seeds, chunksize=CHUNK)


def first_failure(seeds: Iterable[int]) -> Failure | None:
    """The first seed that fails, in this process, where planted mutants live."""
    return next((failure for failure in map(try_seed, seeds) if isinstance(failure, Failure)), None)
