"""Speculation leaves every text as it is, and draft KV that is called final is what the final sequence makes it."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from augury.errors import InvalidRequestError
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams
from tests.worker.cases import (
    CHUNKS,
    CROWD,
    DEPTHS,
    FAMILIES,
    GREEDY,
    PREFIX,
    Case,
    Depth,
    Engines,
    Plan,
    Wish,
    cases,
    check_texts,
)
from tests.worker.driver import WHOLE, Driver, Tracked, draft_kv
from tests.worker.tiny import BLOCK_SIZE
from worker_svc.engine import Engine

torch.set_num_threads(1)

DRAFTING = [depth for depth in DEPTHS if depth != 0]
SAMPLED = SamplingParams(temperature=0.8, seed=3)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(lambda: tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20)
@given(case=cases)
def test_a_text_does_not_depend_on_speculation(engines: Engines, family: str, case: Case) -> None:
    check_texts(engines, family, case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=250)
@given(case=cases)
def test_thousands_of_texts_do_not_depend_on_speculation(engines: Engines, family: str, case: Case) -> None:
    check_texts(engines, family, case)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_crowd_shares_prefixes_is_preempted_and_drafts(engines: Engines, depth: Depth) -> None:
    """The property above means something: this is one of its cases, and all of that happens in it."""
    ends = [(*PREFIX[:size], size) for size in (70, 72, 73, 70)]
    wanted = [
        Wish(prompt=prompt, num_wanted=12, sampling=sampling, stops=frozenset(), min_tokens=0, max_drafts=None)
        for prompt, sampling in zip(ends, [GREEDY, GREEDY, SAMPLED, SAMPLED], strict=True)
    ]
    plan: Plan = [
        [(64, WHOLE)],
        [(WHOLE, WHOLE)],
        [(1, WHOLE)],
        [(None, WHOLE), (1, WHOLE), (1, 1)],
        [(5, 2)],
        [(16, 0)],
    ]
    family = "chained, accepted"
    case = Case(depth=depth, wanted=wanted, plan=plan, margin=None, crowd=True)
    driver = check_texts(engines, family, case)
    assert len(driver.requests) == CROWD and driver.num_hit_blocks >= 5 * (len(PREFIX) // BLOCK_SIZE - 2)
    if depth is not None:
        assert any(accepted for request in driver.requests for _, accepted in request.fates) == (depth != 0)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=14)
@given(case=cases)
def test_final_draft_kv_is_what_the_final_sequence_makes_it(engines: Engines, family: str, case: Case) -> None:
    driver = engines.driver(family, case.depth, case.margin, poisons=case.poisons)
    case.run(driver)
    for request in driver.requests:
        check_final_kv(engines, request, driver.engine)


def check_final_kv(engines: Engines, request: Tracked, engine: Engine) -> int:
    """Compares with the KV of one pass over the final sequence; how many rows are final."""
    got = torch.cat(request.final_kv)
    assert len(got) == request.num_final
    if len(got):
        driver = Driver(engine, engines.epoch())
        whole = driver.add(request.tokens, 2 + engine.description.max_drafts, GREEDY)
        driver.step({0: WHOLE})
        expected = draft_kv(engine, whole.blocks, range(len(got)))
        known = ~got.isnan()  # what was not there to be hit is not known
        torch.testing.assert_close(got[known], expected[known])
    return len(got)


@pytest.mark.parametrize("family", ["chained", "parallel", "self"])
@settings(max_examples=10)
@given(case=cases)
def test_the_frontier_keeps_up(engines: Engines, family: str, case: Case) -> None:
    """At most N - 1 rows behind while drafting to the full depth; else by no block of the prompt, and few others."""
    driver = engines.driver(family, case.depth, case.margin, poisons=case.poisons)
    lookahead = driver.engine.description.num_prefill_lookahead
    deepest = driver.engine.description.max_drafts

    def check() -> None:
        for request in driver.requests:
            if not request.blocks:
                continue
            could_be = max(0, min(request.num_computed, len(request.tokens) - lookahead))
            lag = could_be // BLOCK_SIZE - request.num_final // BLOCK_SIZE
            assert lag < (4 if request.num_final >= len(request.prompt) else 1)
            if deepest and request.num_drafts == deepest:
                assert request.num_final == could_be >= request.num_computed - (lookahead - 1)

    case.run(driver, check)


def recorded(driver: Driver, prompt: tuple[int, ...], chunk: int) -> list[Tracked]:
    """A greedy and a sampled request run twice, the second time after a prefix hit where their tokens allow."""
    for _ in range(2):
        indices = range(len(driver.requests), len(driver.requests) + 2)
        for sampling in (GREEDY, SAMPLED):
            driver.add(prompt, 16, sampling)
        while left := [index for index in indices if not driver.requests[index].done]:
            driver.step(dict.fromkeys(left, chunk))
    lookahead = driver.engine.description.num_prefill_lookahead
    assert driver.num_hit_blocks == 2 * ((len(prompt) - max(1, lookahead)) // BLOCK_SIZE)
    return driver.requests


@pytest.mark.parametrize("family", ["chained", "chained, accepted", "parallel", "self"])
def test_drafts_are_the_same_for_every_depth_chunk_and_hit(engines: Engines, family: str) -> None:
    """So is acceptance at position 0: at every place of the text the first draft is one and the same token."""
    seen: dict[tuple[float, int, int], int] = {}
    texts: dict[float, tuple[int, ...]] = {}
    num_compared = 0
    for depth in DRAFTING:
        for chunk in CHUNKS:
            for request in recorded(engines.driver(family, depth), PREFIX[:70], chunk):
                temperature = request.sampling.temperature
                assert texts.setdefault(temperature, request.tokens) == request.tokens
                for place, drafts in request.drafted.items():
                    for position, draft in enumerate(drafts):
                        num_compared += (temperature, place, position) in seen
                        assert seen.setdefault((temperature, place, position), draft) == draft
    fates = Counter(draft == texts[at][place] for (at, place, position), draft in seen.items() if position == 0)
    assert num_compared > 600 and fates.total() >= 20 and (fates[True] > 0 or "accepted" not in family)


@pytest.mark.parametrize("num_prompt", range(1, 7))
@pytest.mark.parametrize("family", ["chained", "parallel", "self"])
def test_prompts_shorter_than_the_chain(engines: Engines, family: str, num_prompt: int) -> None:
    driver = engines.driver(family, 3)
    driver.add(PREFIX[:num_prompt], 12, GREEDY)
    (text,) = driver.finish()
    request = driver.requests[0]
    assert text == engines.text(family, request)
    assert min(request.drafted) == num_prompt + 1, "drafts follow the very first token"
    assert check_final_kv(engines, request, driver.engine) >= len(request.tokens) - 3 - BLOCK_SIZE


@pytest.mark.parametrize("family", ["chained, accepted", "parallel, accepted", "self, accepted"])
def test_from_none_to_all_drafts_are_accepted(engines: Engines, family: str) -> None:
    """The properties above mean something: in them drafts are accepted to every depth, greedily and sampled."""
    for temperature in (0.0, 0.8):
        driver = Driver(engines.engine(family, 3), engines.epoch())
        for seed in range(12):
            sampling = SamplingParams(temperature=temperature, seed=seed)
            driver.add(tuple(range(seed, 20 + 2 * seed)), 20, sampling)
        driver.finish()
        fates = Counter(accepted for r in driver.requests for verified, accepted in r.fates if verified == 3)
        assert all(fates[accepted] for accepted in range(4)), fates


def test_shared_noise_makes_sampled_drafts_of_the_same_distribution_come_true(engines: Engines) -> None:
    """The modules of this model know the target's distribution exactly, but for the tokens they may not draft."""
    driver = Driver(engines.engine("parallel, accepted", 3), engines.epoch())
    for seed in range(8):
        driver.add(PREFIX[:22], 30, SamplingParams(temperature=1.2, seed=seed))
    driver.finish()
    fates = [fate for request in driver.requests for fate in request.fates]
    assert sum(accepted for _, accepted in fates) > 0.5 * sum(verified for verified, _ in fates)


@pytest.mark.parametrize("family", ["chained", "parallel", "self"])
def test_cpu_attention_speculates_as_the_reference_does(engines: Engines, family: str) -> None:
    drafted = []
    for attention in ("reference", "cpu"):
        driver = Driver(engines.engine(family, 3, attention), engines.epoch())
        for size in (1, 9, 17, 30):
            driver.add(tuple(range(size)), 16, GREEDY)
        driver.finish()
        drafted.append([request.drafted for request in driver.requests])
    assert drafted[0] == drafted[1]


def test_the_context_bounds_the_drafts(engines: Engines) -> None:
    engine = engines.engine("chained", 3)
    max_len = engine.description.max_model_len
    driver = Driver(engine, engines.epoch())
    driver.add((5,) * (max_len - 6), 6, GREEDY)
    (text,) = driver.finish()
    assert text == engines.text("chained", driver.requests[0])
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
def test_only_drafts_that_are_held_are_verified(engines: Engines, row: Row, message: str) -> None:
    engine, epoch, prompt = engines.engine("chained", 3), engines.epoch(), PREFIX[:22]
    fresh = NewRequest(
        handle=1,
        tokens=prompt,
        num_prompt=len(prompt),
        num_computed=0,
        blocks=(tuple(range(1, 11)),),
        hits=(),
        sampling=GREEDY,
        stopping=StopParams(max_tokens=9),
    )
    other = replace(fresh, handle=2, blocks=(tuple(range(11, 21)),))
    rows = (Row(handle=1, num_new=len(prompt)), Row(handle=2, num_new=4))
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
    engines: Engines, family: str, depth: Depth, lookahead: int, max_drafts: int
) -> None:
    description = engines.engine(family, depth).description
    assert (description.num_prefill_lookahead, description.max_drafts) == (lookahead, max_drafts)


def test_more_drafts_than_modules_are_refused(engines: Engines) -> None:
    for family in ("chained", "parallel"):
        with pytest.raises(ValueError, match="4 drafts are asked for, but the model has 3 MTP modules"):
            engines.engine(family, 4)
