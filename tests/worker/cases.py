"""Requests, schedules and tiny models in which speculation must leave every text as it is."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from augury.types import SamplingParams, StopParams
from tests.worker.driver import WHOLE, Driver, Tracked, text_alone
from tests.worker.tiny import BLOCK_SIZE, VOCAB_SIZE, limit_drafts, save_mtp, save_predictable
from worker_svc.depth import Acceptance, DepthPolicy
from worker_svc.engine import Engine, EngineOptions

CROWD = 16
NUM_BLOCKS = 1000
CHUNKS = (1, 5, 16, 64, WHOLE)
PREFIX = tuple(token % VOCAB_SIZE for token in range(3, 80))
GREEDY = SamplingParams(temperature=0)
WINDOWS = {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}
OWN_WINDOW = {"layer_types": ["sliding_attention"] * 3}
MODULE_WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}


def save_limited(path: Path, num_modules: int, policy: dict[str, str]) -> None:
    """Modules that are always right, but for a fifth of the tokens, which they cannot draft."""
    save_predictable(path, num_modules, policy)
    limit_drafts(path, [token for token in range(VOCAB_SIZE) if token % 5])


FAMILIES: dict[str, Callable[[Path], Any]] = {
    "chained": lambda path: save_mtp(path, 3),
    "chained, the other way round": lambda path: save_mtp(
        path,
        3,
        {"concat": "hidden_embed", "target_hidden": "pre_norm", "chain_hidden": "pre_norm", "head": "per_module"},
    ),
    "chained, windows": lambda path: save_mtp(path, 3, {"out_norm": "none"} | MODULE_WINDOWS, **WINDOWS),
    "chained, windows of their own": lambda path: save_mtp(path, 3, OWN_WINDOW, sliding_window=5),
    "chained, accepted": lambda path: save_predictable(path, 3, memory=0.03),
    "parallel": lambda path: save_mtp(path, 3, {"chain": "parallel", "out_norm": "shared"}),
    "parallel, accepted": lambda path: save_limited(path, 3, {"chain": "parallel"}),
    "self": lambda path: save_mtp(path, 1, {"chain": "self"}),
    "self, accepted": lambda path: save_predictable(path, 1, {"chain": "self"}, memory=0.03),
}

Depth = int | str | None
"""As in EngineOptions, or "changing"."""
DEPTHS: tuple[Depth, ...] = (0, 1, 2, 3, None, "changing")


class Changing(DepthPolicy):
    """Another depth each time, of which none is deeper than 3."""

    def __init__(self, num_drafts: int, *, fixed: bool) -> None:
        super().__init__(num_drafts, fixed=fixed)
        self._rng = random.Random(5)

    def choose(self, requests: Sequence[Acceptance], limits: Sequence[int]) -> list[int]:
        return [self._rng.randint(0, limit) for limit in limits]


class Engines:
    """Engines for the families, each made once, in folders that ``make_folder`` gives."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._make_folder = make_folder
        self._epochs = itertools.count(1)
        self._texts: dict[tuple[object, ...], list[int]] = {}
        self.folder = cache(self._folder)
        self.engine = cache(self._engine)

    def _folder(self, family: str) -> Path:
        path = self._make_folder()
        FAMILIES[family](path)
        return path

    def _engine(self, family: str, depth: Depth, attention: str = "reference") -> Engine:
        options = EngineOptions(dtype="float32", block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, attention=attention)
        if depth == "changing":
            deepest = 3 if family.startswith("self") else None
            with patch("worker_svc.engine.DepthPolicy", Changing):
                return Engine.load(self.folder(family), replace(options, depth=deepest))
        assert not isinstance(depth, str)
        return Engine.load(self.folder(family), replace(options, depth=depth))

    def driver(self, family: str, depth: Depth, margin: int | None = None, *, poisons: bool = False) -> Driver:
        return Driver(self.engine(family, depth), self.epoch(), margin, poisons=poisons)

    def epoch(self) -> int:
        return next(self._epochs)

    def text(self, family: str, request: Tracked) -> list[int]:
        """What the request says alone, without speculation, its prompt at once."""
        asked = family, request.prompt, request.num_wanted, repr(request.sampling), repr(request.stopping)
        if asked not in self._texts:
            self._texts[asked] = text_alone(self.engine(family, 0), self.epoch(), request)
        return self._texts[asked]


def edges(length: int) -> st.SearchStrategy[int]:
    """Numbers up to ``length``, with a liking for the edges of blocks and what lies just behind."""
    near = [edge + offset for edge in range(0, length, BLOCK_SIZE) for offset in (0, 1)]
    return st.integers(0, length) | st.sampled_from(near)


prompts = st.builds(
    lambda shared, own: (*PREFIX[:shared], *own),
    edges(24) | edges(len(PREFIX)),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24),
)
samplings = st.sampled_from(
    [
        GREEDY,
        SamplingParams(temperature=0.8, top_p=0.9, seed=5),
        SamplingParams(temperature=0.8, min_p=0.05, logit_bias={7: 3.0, 11: -5.0}, seed=2**64 - 1),
        SamplingParams(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, seed=11),
        SamplingParams(
            temperature=0.8,
            top_p=0.9,
            min_p=0.02,
            repetition_penalty=1.1,
            frequency_penalty=0.2,
            presence_penalty=0.3,
            logit_bias={3: 2.0, 40: -2.0},
            seed=3,
        ),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Wish:
    prompt: tuple[int, ...]
    num_wanted: int
    sampling: SamplingParams
    stops: frozenset[int]
    min_tokens: int
    max_drafts: int | None

    def add_to(self, driver: Driver) -> Tracked:
        stopping = StopParams(max_tokens=self.num_wanted, min_tokens=self.min_tokens, stop_token_ids=self.stops)
        return driver.add(self.prompt, self.num_wanted, self.sampling, stopping, self.max_drafts)


wishes = st.lists(
    st.builds(
        Wish,
        prompt=prompts,
        num_wanted=st.integers(1, 24),
        sampling=samplings,
        stops=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=8),
        min_tokens=st.integers(0, 3),
        max_drafts=st.sampled_from([None, None, None, 0, 1, 2]),
    ),
    min_size=1,
    max_size=4,
)
# For each iteration and request: None preempts it, 0 lets it wait, else a chunk; and how many drafts are verified.
choices = st.tuples(st.sampled_from([*CHUNKS, 1, 5, 0, None]), st.sampled_from([WHOLE, WHOLE, 0, 1, 2]))
plans = st.lists(st.lists(choices, min_size=5, max_size=5), max_size=25)
Plan = list[list[tuple[int | None, int]]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """``wanted`` is asked over and over until there are ``num_requests``; so are the choices of a line of the plan.

    ``margin`` 0 breaks the rule that a chunk ends so many tokens before the prompt's end; None keeps it. If it
    ``poisons``, blocks that a window has passed become NaN.
    """

    depth: Depth
    wanted: list[Wish]
    plan: Plan
    margin: int | None
    crowd: bool
    poisons: bool = False

    @property
    def num_requests(self) -> int:
        return CROWD if self.crowd else len(self.wanted)

    def run(self, driver: Driver, after_step: Callable[[], None] = lambda: None) -> None:
        """Carry out the plan, then all requests to their ends."""
        for wish in itertools.islice(itertools.cycle(self.wanted), self.num_requests):
            wish.add_to(driver)
        to_the_end: Plan = [[(WHOLE, WHOLE)]] * 40
        for line in [*self.plan, *to_the_end]:
            chunks: dict[int, int] = {}
            trims: dict[int, int] = {}
            for index, (request, (chunk, trim)) in enumerate(zip(driver.requests, itertools.cycle(line), strict=False)):
                if chunk is None:
                    driver.preempt(index)
                elif chunk and not request.done:
                    chunks[index], trims[index] = chunk, trim
            if chunks:
                driver.step(chunks, trims)
                after_step()
        assert all(request.done for request in driver.requests)


cases = st.builds(
    Case,
    depth=st.sampled_from(DEPTHS),
    wanted=wishes,
    plan=plans,
    margin=st.sampled_from([None, None, 0]),
    crowd=st.sampled_from([False, False, False, True]),
    poisons=st.booleans(),
)


def check_texts(engines: Engines, family: str, case: Case) -> Driver:
    """Raises AssertionError where a text is not what its request says alone, without speculation."""
    driver = engines.driver(family, case.depth, case.margin, poisons=case.poisons)
    case.run(driver)
    for request in driver.requests:
        assert request.emitted == engines.text(family, request)
    return driver
