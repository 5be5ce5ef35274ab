"""Layers behind a window hold only the KV it reaches, and no text changes for it, whatever becomes of the rest."""

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
from augury.geometry import KvGroup, max_slots
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams
from tests.worker.driver import Driver
from tests.worker.test_schedules import PREFIX, Plan, Wish, plans, requests, run
from tests.worker.tiny import BLOCK_SIZE, VOCAB_SIZE, save_mtp
from worker_svc.engine import Engine, EngineOptions
from worker_svc.model.description import Architecture, parse_architecture, read_architecture
from worker_svc.model.groups import View, make_layout
from worker_svc.model.named import DEMO, STORY
from worker_svc.requests import Bounds, check_step

torch.set_num_threads(1)

FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = 5
GREEDY = SamplingParams(temperature=0)
LAG = 4 * BLOCK_SIZE - 1
"""Rows that the speculator may leave its modules behind for."""
MODELS: dict[str, Callable[[Path], Any]] = {
    "modules in the model's groups": lambda path: save_mtp(
        path, 3, {"layer_types": [SLIDING, FULL, SLIDING]}, sliding_window=WINDOW, layer_types=[FULL, SLIDING]
    ),
    "modules in a group of their own": lambda path: save_mtp(
        path, 3, {"layer_types": [SLIDING] * 3}, sliding_window=WINDOW
    ),
    "modules apart from windows": lambda path: save_mtp(
        path, 2, {"layer_types": [FULL] * 2}, sliding_window=WINDOW, layer_types=[FULL, SLIDING]
    ),
    "windows alone, one module fed by itself": lambda path: save_mtp(
        path, 1, {"chain": "self", "layer_types": [SLIDING]}, sliding_window=WINDOW, layer_types=[SLIDING] * 2
    ),
}


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Engine]:
    @cache
    def folder(model: str) -> Path:
        path = tmp_path_factory.mktemp("tiny")
        MODELS[model](path)
        return path

    @cache
    def engine(model: str, attention: str, depth: int | None = None, hybrid: bool = True) -> Engine:
        options = EngineOptions(
            dtype="float32", block_size=BLOCK_SIZE, num_blocks=400, attention=attention, depth=depth, hybrid=hybrid
        )
        return Engine.load(folder(model), options)

    return engine


@pytest.fixture(scope="module")
def epochs() -> Iterator[int]:
    return count(1)


# --- which layer is where ---


def architecture(layer_types: list[str], draft_types: list[str] | None = None, chain: str = "chained") -> Architecture:
    """Windows are of 9 tokens."""
    mtp = {
        "chain": chain,
        "concat": "embed_hidden",
        "target_hidden": "post_norm",
        "chain_hidden": "post_norm",
        "out_norm": "none",
        "head": "shared",
    }
    return parse_architecture(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 9,
            "hidden_size": 2,
            "intermediate_size": 2,
            "num_hidden_layers": len(layer_types),
            "num_attention_heads": 1,
            "sliding_window": 9,
            "layer_types": layer_types,
            "num_nextn_predict_layers": len(draft_types or []),
            "mtp": mtp | {"layer_types": draft_types},
        }
    )


def test_layers_of_one_window_share_a_group() -> None:
    layout = make_layout(read_architecture(DEMO / STORY), 4, 16, num_lagging=63)
    assert layout.groups == (
        KvGroup(block_size=16, has_drafts=True),
        KvGroup(block_size=16, window=32, has_drafts=True, num_retained=3 + 63),
    )
    full, sliding = View(group=0, window=None), View(group=1, window=32)
    assert layout.views == (sliding, full) * 2 + (full, sliding) * 2
    assert layout.shelves == (0, 0, 1, 1, 2, 2, 3, 3)
    assert layout.num_shelves == 4


@pytest.mark.parametrize(
    ("layer_types", "draft_types", "chain", "expected"),
    [
        ([FULL] * 2, [], "chained", [KvGroup(block_size=4)]),
        ([FULL] * 2, [FULL], "self", [KvGroup(block_size=4, has_drafts=True)]),
        ([SLIDING] * 2, [], "chained", [KvGroup(block_size=4, window=9)]),
        ([FULL, SLIDING], [], "chained", [KvGroup(block_size=4), KvGroup(block_size=4, window=9)]),
        (
            [FULL, SLIDING],
            [FULL] * 3,
            "chained",
            [KvGroup(block_size=4, has_drafts=True), KvGroup(block_size=4, window=9)],
        ),
        (
            [SLIDING] * 2,
            [FULL] * 3,
            "chained",
            [KvGroup(block_size=4, has_drafts=True), KvGroup(block_size=4, window=9)],
        ),
        (
            [FULL, SLIDING],
            [SLIDING] * 2,
            "chained",
            [KvGroup(block_size=4), KvGroup(block_size=4, window=9, has_drafts=True, num_retained=8)],
        ),
        (
            [FULL] * 2,
            [SLIDING] * 3,
            "chained",
            [KvGroup(block_size=4), KvGroup(block_size=4, window=9, has_drafts=True, num_retained=9, num_rebuilt=24)],
        ),
        (
            [FULL] * 2,
            [SLIDING] * 3,
            "parallel",
            [KvGroup(block_size=4), KvGroup(block_size=4, window=9, has_drafts=True, num_retained=9, num_rebuilt=8)],
        ),
        (  # Module 2 reads what module 0 computes, and keeps it with the model's layers.
            [FULL] * 2,
            [SLIDING, SLIDING, FULL],
            "chained",
            [
                KvGroup(block_size=4, has_drafts=True),
                KvGroup(block_size=4, window=9, has_drafts=True, num_retained=9),
            ],
        ),
        (
            [FULL] * 2,
            [FULL, SLIDING, SLIDING],
            "chained",
            [
                KvGroup(block_size=4, has_drafts=True),
                KvGroup(block_size=4, window=9, has_drafts=True, num_retained=9, num_rebuilt=16),
            ],
        ),
    ],
)
def test_groups_follow_from_the_architecture(
    layer_types: list[str], draft_types: list[str], chain: str, expected: list[KvGroup]
) -> None:
    given = architecture(layer_types, draft_types, chain)
    assert make_layout(given, len(draft_types), 4, num_lagging=7).groups == tuple(expected)
    off = make_layout(given, len(draft_types), 4, num_lagging=7, hybrid=False)
    assert off.groups == (KvGroup(block_size=4, has_drafts=bool(draft_types)),)
    windows = [9 if kind == SLIDING else None for kind in layer_types + draft_types]
    assert off.views == tuple(View(group=0, window=window) for window in windows), "the masks stay"


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_module_that_no_tag_places_is_refused(hybrid: bool, tmp_path: Path) -> None:
    save_mtp(tmp_path, 2, {}, sliding_window=WINDOW, layer_types=[FULL, SLIDING])
    options = EngineOptions(num_blocks=4, hybrid=hybrid)
    with pytest.raises(ValueError, match=r"mtp\.layer_types"):
        Engine.load(tmp_path, options)
    assert len(Engine.load(tmp_path, replace(options, depth=0)).kv.layers) == 2


def test_the_same_memory_holds_more_tokens_of_a_hybrid_model() -> None:
    hybrid, off = (
        Engine.load(DEMO / STORY, EngineOptions(memory_mb=4, hybrid=hybrid)).description for hybrid in (True, False)
    )
    assert off.bytes_per_block == 2 * hybrid.bytes_per_block
    num_blocks, num_ahead = (1 << 20) // off.bytes_per_block, 5
    assert max_slots(off.groups, num_blocks, num_ahead, 4096) == 16 * (num_blocks - 1)
    # A window group holds 31 + 66 + 5 slots in 8 blocks at most, and the full one has the rest.
    assert max_slots(hybrid.groups, 2 * num_blocks, num_ahead, 4096) == 16 * (2 * num_blocks - 1 - 8)


# --- what a step may say ---


BOUNDS = Bounds(
    vocab_size=VOCAB_SIZE,
    max_len=60,
    num_blocks=40,
    groups=(
        KvGroup(block_size=4),
        KvGroup(block_size=4, window=5),
        KvGroup(block_size=4, window=5, has_drafts=True, num_retained=3, num_rebuilt=4),
    ),
)
"""At 16 computed tokens, 3 entries of the first window and 2 of the second are passed."""
HITS = tuple((block, bytes(16)) for block in (1, 2, 3, 4, 9, 11, 12))


def hitting(blocks: tuple[tuple[int, ...], ...], hits: tuple[tuple[int, bytes], ...] = HITS) -> Step:
    fresh = NewRequest(
        handle=1,
        tokens=tuple(range(20)),
        num_prompt=20,
        num_computed=16,
        blocks=blocks,
        hits=hits,
        sampling=GREEDY,
        stopping=StopParams(max_tokens=4),
    )
    return Step(epoch=1, seq=1, fresh=(fresh,), rows=(Row(handle=1, num_new=4),))


FULL_TABLE, WINDOW_TABLE, DRAFT_TABLE = (1, 2, 3, 4, 20), (0, 0, 0, 9, 21), (0, 0, 11, 12, 22)


def test_tables_have_null_where_a_window_has_passed_or_drafts_are_rebuilt() -> None:
    check_step(hitting((FULL_TABLE, WINDOW_TABLE, DRAFT_TABLE)), {}, BOUNDS)
    check_step(hitting((FULL_TABLE, WINDOW_TABLE, (0, 0, 0, 0, 22)), HITS[:5]), {}, BOUNDS)


@pytest.mark.parametrize(
    "step",
    [
        hitting(((1, 0, 3, 4, 20), WINDOW_TABLE, DRAFT_TABLE), (HITS[0], *HITS[2:])),
        hitting((FULL_TABLE, (0, 0, 0, 0, 21), DRAFT_TABLE), (*HITS[:4], *HITS[5:])),
        hitting((FULL_TABLE, WINDOW_TABLE, (0, 0, 0, 12, 22)), (*HITS[:5], HITS[6])),
        hitting((FULL_TABLE, WINDOW_TABLE, (0, 0, 11, 12, 0))),
        hitting((FULL_TABLE, WINDOW_TABLE)),
        hitting((FULL_TABLE, WINDOW_TABLE, DRAFT_TABLE), HITS[1:]),
        hitting((FULL_TABLE, WINDOW_TABLE, (0, 0, 11, 12, 20))),
        hitting((FULL_TABLE, WINDOW_TABLE, (0, 0, 11, 12))),
    ],
    ids=[
        "full attention",
        "a window that reaches",
        "drafts half rebuilt",
        "a block to be written",
        "a table missing",
        "a hit without its key",
        "one block in two groups",
        "a table too short",
    ],
)
def test_tables_with_null_elsewhere_are_refused(step: Step) -> None:
    with pytest.raises(InvalidRequestError):
        check_step(step, {}, BOUNDS)


# --- texts and memory ---


@dataclass(frozen=True, kw_only=True)
class Case:
    """If it ``poisons``, blocks that a window has passed become NaN; they are given away in any case."""

    wishes: list[Wish]
    plan: Plan
    depth: int | None
    poisons: bool


cases = st.builds(Case, wishes=requests, plan=plans, depth=st.sampled_from([0, 1, None]), poisons=st.booleans())


@pytest.mark.parametrize("attention", ["reference", "cpu"])
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=12)
@given(case=cases)
def test_a_text_does_not_depend_on_what_becomes_of_blocks_behind_a_window(
    engine_of: Callable[..., Engine], epochs: Iterator[int], model: str, attention: str, case: Case
) -> None:
    hybrid, promoted = (engine_of(model, attention, case.depth, hybrid) for hybrid in (True, False))
    driver = run(Driver(hybrid, next(epochs), poisons=case.poisons), case.wishes, case.plan)
    assert driver.finish() == run(Driver(promoted, next(epochs)), case.wishes, case.plan).finish()


def test_windows_are_hit_where_a_prefix_ends(engine_of: Callable[..., Engine], epochs: Iterator[int]) -> None:
    """The property above means something: with nothing evicted, all groups are hit, and dead entries are null."""
    driver = Driver(engine_of("modules in the model's groups", "cpu"), next(epochs))
    first, again = driver.add((*PREFIX, 1), 12, GREEDY), driver.add((*PREFIX, 1), 12, GREEDY)
    while not first.done:
        driver.step({0: 7})
    driver.step({1: 7})
    num_hit = (len(PREFIX) + 1 - 3) // BLOCK_SIZE
    assert driver.num_hit_blocks == num_hit
    num_dead = max(0, num_hit * BLOCK_SIZE - WINDOW + 1 - 2 - LAG) // BLOCK_SIZE
    assert [table[:num_hit].count(0) for table in again.blocks] == [0, num_dead]
    assert driver.finish()[0] == driver.finish()[1]


def test_draft_kv_that_alone_is_missing_is_rebuilt(engine_of: Callable[..., Engine], epochs: Iterator[int]) -> None:
    """The target's hit is taken, and the modules start anew so far before its end that they are right again there."""
    engine = engine_of("modules in a group of their own", "cpu", 3)
    prompt = tuple(range(3, 75))
    driver = Driver(engine, next(epochs), poisons=True)
    driver.add(prompt, 8, GREEDY)
    while not driver.requests[0].done:
        driver.step({0: 5})
    again = driver.add(prompt, 8, GREEDY)
    driver.step({1: 1})
    num_target = (len(prompt) - 3) // BLOCK_SIZE
    num_rebuilt = 3 * (WINDOW - 1)
    assert driver.num_hit_blocks == num_target - num_rebuilt // BLOCK_SIZE
    assert again.blocks[1][: driver.num_hit_blocks] == [0] * driver.num_hit_blocks
    driver.finish()
    assert again.emitted == driver.requests[0].emitted
    assert again.drafted == driver.requests[0].drafted


def test_a_request_holds_no_more_blocks_than_the_windows_reach(
    engine_of: Callable[..., Engine], epochs: Iterator[int]
) -> None:
    """The driver checks each step against KvGroup.peak; here the numbers, decoding far beyond the window."""
    driver = Driver(engine_of("modules in the model's groups", "cpu", 3), next(epochs))
    request = driver.add(PREFIX, 180, GREEDY)
    held = []
    while not request.done:
        held += [sum(block != 0 for block in table) for table in request.blocks[1:]]
        driver.step({0: 4})
    # 4 positions before the query, 2 + 15 retained, 1 new and 3 drafts are 25 slots in 7 blocks, of 52 at the end.
    assert max(held) == 7 and set(held[-100:]) == {7}


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_story_model_says_the_same_without_what_its_windows_passed(epochs: Iterator[int], seed: int | None) -> None:
    sampling = GREEDY if seed is None else SamplingParams(temperature=0.8, seed=seed)
    texts = []
    for hybrid in (True, False):
        options = EngineOptions(dtype="float32", num_blocks=80, hybrid=hybrid, depth=4)
        driver = Driver(Engine.load(DEMO / STORY, options), next(epochs), poisons=True)
        for prompt in ((5, 6, 7), tuple(range(100, 190))):
            driver.add(prompt, 150, sampling)
        driver.step({0: 3, 1: 40})
        texts.append(driver.finish())
    assert texts[0] == texts[1]
