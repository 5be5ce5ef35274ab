"""Speculation leaves every text as it is, and draft KV that is called final is what the final sequence makes it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import InvalidRequestError
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams
from tests.worker.driver import WHOLE, Driver, Tracked, draft_kv, text_alone
from tests.worker.tiny import BLOCK_SIZE, VOCAB_SIZE, limit_drafts, save_mtp, save_predictable
from worker_svc.engine import Engine, EngineOptions

torch.set_num_threads(1)

CHUNKS = (1, 5, 16, WHOLE)
PREFIX = tuple(range(3, 25))
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
DEPTHS = (1, 2, 3, None)

prompts = st.builds(
    lambda shared, own: (*PREFIX[:shared], *own),
    st.integers(0, len(PREFIX)),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24),
)
samplings = st.sampled_from(
    [
        GREEDY,
        SamplingParams(temperature=0.8, top_p=0.9, seed=5),
        SamplingParams(temperature=0.8, min_p=0.05, logit_bias={7: 3.0, 11: -5.0}, seed=2**64 - 1),
        SamplingParams(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, seed=11),
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
plans = st.lists(st.lists(choices, min_size=4, max_size=4), max_size=25)
Plan = list[list[tuple[int | None, int]]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """``margin`` 0 breaks the rule that a chunk ends so many tokens before the prompt's end; None keeps it. If it
    ``poisons``, blocks that a window has passed become NaN.
    """

    depth: int | None
    wanted: list[Wish]
    plan: Plan
    margin: int | None
    poisons: bool

    def run(self, engine: Engine, epoch: int) -> Driver:
        driver = Driver(engine, epoch, self.margin, poisons=self.poisons)
        run(driver, self.wanted, self.plan)
        return driver


cases = st.builds(
    Case,
    depth=st.sampled_from(DEPTHS),
    wanted=wishes,
    plan=plans,
    margin=st.sampled_from([None, None, 0]),
    poisons=st.booleans(),
)


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Engine]:
    @cache
    def folder(family: str) -> Path:
        path = tmp_path_factory.mktemp("tiny")
        FAMILIES[family](path)
        return path

    @cache
    def engine(family: str, depth: int | None, attention: str = "reference") -> Engine:
        options = EngineOptions(
            dtype="float32", block_size=BLOCK_SIZE, num_blocks=250, attention=attention, depth=depth
        )
        return Engine.load(folder(family), options)

    return engine


@pytest.fixture(scope="module")
def epochs() -> Iterator[int]:
    return count(1)


def run(driver: Driver, wanted: list[Wish], plan: Plan, after_step: Callable[[], None] = lambda: None) -> None:
    """Carry out the plan, then all requests to their ends."""
    for wish in wanted:
        wish.add_to(driver)
    to_the_end: Plan = [[(WHOLE, WHOLE)] * len(wanted)] * 40
    for row in [*plan, *to_the_end]:
        chunks: dict[int, int] = {}
        trims: dict[int, int] = {}
        for index, (request, (chunk, trim)) in enumerate(zip(driver.requests, row, strict=False)):
            if chunk is None:
                driver.preempt(index)
            elif chunk and not request.done:
                chunks[index], trims[index] = chunk, trim
        if chunks:
            driver.step(chunks, trims)
            after_step()
    assert all(request.done for request in driver.requests)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=14, deadline=None)
@given(case=cases)
def test_a_text_does_not_depend_on_speculation(
    engine_of: Callable[..., Engine], epochs: Iterator[int], family: str, case: Case
) -> None:
    driver = case.run(engine_of(family, case.depth), next(epochs))
    without = engine_of(family, 0)
    for request in driver.requests:
        assert request.emitted == text_alone(without, next(epochs), request)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=14, deadline=None)
@given(case=cases)
def test_final_draft_kv_is_what_the_final_sequence_makes_it(
    engine_of: Callable[..., Engine], epochs: Iterator[int], family: str, case: Case
) -> None:
    driver = case.run(engine_of(family, case.depth), next(epochs))
    for request in driver.requests:
        got = torch.cat(request.final_kv)
        assert len(got) == request.num_final
        if len(got):
            assert_same(got, from_scratch(driver.engine, next(epochs), request.tokens))


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """As far as ``got`` reaches, but for what was not there to be hit."""
    known = ~got.isnan()
    torch.testing.assert_close(got[known], expected[: len(got)][known])


def from_scratch(engine: Engine, epoch: int, tokens: tuple[int, ...]) -> torch.Tensor:
    """The draft KV of ``tokens``, in one pass."""
    driver = Driver(engine, epoch)
    request = driver.add(tokens, 2 + engine.description.max_drafts, GREEDY)
    driver.step({0: WHOLE})
    return draft_kv(engine, request.blocks, range(len(tokens)))


@pytest.mark.parametrize("family", ["chained", "parallel", "self"])
@settings(max_examples=10, deadline=None)
@given(case=cases)
def test_the_frontier_keeps_up(
    engine_of: Callable[..., Engine], epochs: Iterator[int], family: str, case: Case
) -> None:
    """At most N - 1 rows behind while drafting to the full depth; else by no block of the prompt, and few others."""
    driver = Driver(engine_of(family, case.depth), next(epochs), case.margin)
    lookahead = driver.engine.description.num_prefill_lookahead
    deepest = driver.engine.description.max_drafts

    def check() -> None:
        for request in driver.requests:
            if not request.blocks:
                continue
            could_be = max(0, min(request.num_computed, len(request.tokens) - lookahead))
            lag = could_be // BLOCK_SIZE - request.num_final // BLOCK_SIZE
            assert lag < (4 if request.num_final >= len(request.prompt) else 1)
            if request.num_drafts == deepest:
                assert request.num_final == could_be >= request.num_computed - (lookahead - 1)

    run(driver, case.wanted, case.plan, check)


def recorded(engine: Engine, epoch: int, prompt: tuple[int, ...], chunk: int, sampling: SamplingParams) -> Tracked:
    """The request run twice, the second time after a prefix hit where its tokens allow."""
    driver = Driver(engine, epoch)
    driver.add(prompt, 16, sampling)
    while not driver.requests[0].done:
        driver.step({0: chunk})
    again = driver.add(prompt, 16, sampling)
    while not again.done:
        driver.step({1: chunk})
    assert driver.num_hit_blocks == (len(prompt) - max(1, engine.description.num_prefill_lookahead)) // BLOCK_SIZE
    assert driver.requests[0].drafted == again.drafted
    return again


@pytest.mark.parametrize("family", ["chained", "chained, accepted", "parallel", "self"])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_drafts_are_the_same_for_every_depth_chunk_and_hit(
    engine_of: Callable[..., Engine], epochs: Iterator[int], family: str, sampling: SamplingParams
) -> None:
    prompt, num_compared = PREFIX[:18], 0
    drafted = [
        recorded(engine_of(family, depth), next(epochs), prompt, chunk, sampling).drafted
        for depth in (1, 2, 3)
        for chunk in (1, 5, 16, WHOLE)
    ]
    reference = drafted[-1]
    for other in drafted:
        for position, drafts in other.items():
            if position in reference:
                shared = min(len(drafts), len(reference[position]))
                assert drafts[:shared] == reference[position][:shared]
                num_compared += shared
    assert num_compared > 100


@pytest.mark.parametrize("num_prompt", range(1, 7))
@pytest.mark.parametrize("family", ["chained", "parallel", "self"])
def test_prompts_shorter_than_the_chain(
    engine_of: Callable[..., Engine], epochs: Iterator[int], family: str, num_prompt: int
) -> None:
    driver = Driver(engine_of(family, 3), next(epochs))
    driver.add(PREFIX[:num_prompt], 12, GREEDY)
    (text,) = driver.finish()
    request = driver.requests[0]
    assert text == text_alone(engine_of(family, 0), next(epochs), request)
    assert min(request.drafted) == num_prompt + 1, "drafts follow the very first token"
    got = torch.cat(request.final_kv)
    assert len(got) >= len(request.tokens) - 3 - BLOCK_SIZE
    torch.testing.assert_close(got, from_scratch(driver.engine, next(epochs), request.tokens)[: len(got)])


@pytest.mark.parametrize("family", ["chained, accepted", "parallel, accepted", "self, accepted"])
def test_from_none_to_all_drafts_are_accepted(
    engine_of: Callable[..., Engine], epochs: Iterator[int], family: str
) -> None:
    """The properties above mean something: in them drafts are accepted to every depth, greedily and sampled."""
    for temperature in (0.0, 0.8):
        driver = Driver(engine_of(family, 3), next(epochs))
        for seed in range(12):
            sampling = SamplingParams(temperature=temperature, seed=seed)
            driver.add(tuple(range(seed, 20 + 2 * seed)), 20, sampling)
        driver.finish()
        fates = Counter(accepted for r in driver.requests for verified, accepted in r.fates if verified == 3)
        assert all(fates[accepted] for accepted in range(4)), fates


def test_shared_noise_makes_sampled_drafts_of_the_same_distribution_come_true(
    engine_of: Callable[..., Engine], epochs: Iterator[int]
) -> None:
    """The modules of this model know the target's distribution exactly, but for the tokens they may not draft."""
    driver = Driver(engine_of("parallel, accepted", 3), next(epochs))
    for seed in range(8):
        driver.add(PREFIX, 30, SamplingParams(temperature=1.2, seed=seed))
    driver.finish()
    fates = [fate for request in driver.requests for fate in request.fates]
    assert sum(accepted for _, accepted in fates) > 0.5 * sum(verified for verified, _ in fates)


@pytest.mark.parametrize("family", ["chained", "parallel", "self"])
def test_cpu_attention_speculates_as_the_reference_does(
    engine_of: Callable[..., Engine], epochs: Iterator[int], family: str
) -> None:
    drafted = []
    for attention in ("reference", "cpu"):
        driver = Driver(engine_of(family, 3, attention), next(epochs))
        for size in (1, 9, 17, 30):
            driver.add(tuple(range(size)), 16, GREEDY)
        driver.finish()
        drafted.append([request.drafted for request in driver.requests])
    assert drafted[0] == drafted[1]


def test_the_context_bounds_the_drafts(engine_of: Callable[..., Engine], epochs: Iterator[int]) -> None:
    engine = engine_of("chained", 3)
    max_len = engine.description.max_model_len
    driver = Driver(engine, next(epochs))
    driver.add((5,) * (max_len - 6), 6, GREEDY)
    (text,) = driver.finish()
    assert text == text_alone(engine_of("chained", 0), next(epochs), driver.requests[0])
    # The last token that is computed is the one before the last: at num_known = max_len - 1 one draft is left.
    assert all(len(drafts) <= max_len - position for position, drafts in driver.requests[0].drafted.items())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(handle=1, num_new=1, num_drafts=4), "3 drafts"),
        (Row(handle=1, num_new=1, num_drafts=-1), "3 drafts"),
        (Row(handle=2, num_new=1, num_drafts=1), "0 drafts"),
    ],
)
def test_only_drafts_that_are_held_are_verified(
    engine_of: Callable[..., Engine], epochs: Iterator[int], row: Row, message: str
) -> None:
    engine, epoch = engine_of("chained", 3), next(epochs)
    fresh = NewRequest(
        handle=1,
        tokens=PREFIX,
        num_prompt=len(PREFIX),
        num_computed=0,
        blocks=(tuple(range(1, 11)),),
        hits=(),
        sampling=GREEDY,
        stopping=StopParams(max_tokens=9),
    )
    other = replace(fresh, handle=2, blocks=(tuple(range(11, 21)),))
    rows = (Row(handle=1, num_new=len(PREFIX)), Row(handle=2, num_new=4))
    outcome = engine.execute(Step(epoch=epoch, seq=1, fresh=(fresh, other), rows=rows))
    assert outcome.num_drafts == (3, 0)
    with pytest.raises(InvalidRequestError, match=message):
        engine.execute(Step(epoch=epoch, seq=2, rows=(row,)))
    assert engine.execute(Step(epoch=epoch, seq=2, rows=(Row(handle=1, num_new=1, num_drafts=3),))).emitted[0]


@pytest.mark.parametrize(
    ("family", "depth", "lookahead", "max_drafts"),
    [
        ("chained", None, 3, 3),
        ("chained", 2, 2, 2),
        ("chained", 0, 0, 0),
        ("parallel", 1, 1, 1),
        ("self", None, 1, 1),
        ("self", 3, 1, 3),
    ],
)
def test_the_description_tells_the_lookahead(
    engine_of: Callable[..., Engine], family: str, depth: int | None, lookahead: int, max_drafts: int
) -> None:
    description = engine_of(family, depth).description
    assert (description.num_prefill_lookahead, description.max_drafts) == (lookahead, max_drafts)


def test_more_drafts_than_modules_are_refused(engine_of: Callable[..., Engine]) -> None:
    for family in ("chained", "parallel"):
        with pytest.raises(ValueError, match="4 drafts are asked for, but the model has 3 MTP modules"):
            engine_of(family, 4)
