"""The contract of a step: once, in order, all or nothing; hits are checked, and one request's trouble stays its own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from augury.errors import FencedError, InvalidRequestError
from augury.types import NewRequest, Row, SamplingParams, Step, StopParams
from tests.worker.tiny import BLOCK_SIZE, VOCAB_SIZE, save_llama
from worker_svc.engine import Engine, EngineOptions

torch.set_num_threads(1)

NUM_BLOCKS = 32
POISON = 96
"""A token whose embedding is NaN in the test model."""
PROMPT = tuple(range(10, 20))
KEYS = tuple(bytes([n]) * 16 for n in range(4))


@pytest.fixture(scope="module", params=["reference", "cpu"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp("tiny")
    save_llama(path)
    poison(path)
    options = EngineOptions(
        dtype="float32", block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_len=40, attention=request.param
    )
    return Engine.load(path, options)


@pytest.fixture(scope="module")
def epochs() -> Iterator[int]:
    return count(1)


def poison(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, path / "model.safetensors")


def new(handle: int, blocks: Sequence[int], tokens: Sequence[int] = PROMPT, **changes: Any) -> NewRequest:
    request = NewRequest(
        handle=handle,
        tokens=tuple(tokens),
        num_prompt=len(tokens),
        num_computed=0,
        blocks=(tuple(blocks),),
        hits=(),
        sampling=SamplingParams(temperature=0),
        stopping=StopParams(max_tokens=8),
    )
    return replace(request, **changes)


def hit(keys: Sequence[bytes], *blocks: int) -> dict[str, Any]:
    """Changes of a request that hits these blocks."""
    return {"hits": tuple(zip(blocks, keys, strict=True)), "num_computed": len(keys) * BLOCK_SIZE}


def row(handle: int, num_new: int, *new_blocks: int) -> Row:
    return Row(handle=handle, num_new=num_new, new_blocks=(new_blocks,) if new_blocks else ())


def whole(epoch: int, handle: int = 1, blocks: Sequence[int] = (1, 2, 3), **changes: Any) -> Step:
    """A first step that computes one request's prompt."""
    fresh = new(handle, blocks, **changes)
    return Step(epoch=epoch, seq=1, fresh=(fresh,), rows=(row(handle, len(fresh.tokens) - fresh.num_computed),))


def test_a_replayed_step_is_not_executed_again(engine: Engine, epochs: Iterator[int]) -> None:
    epoch = next(epochs)
    first = engine.execute(whole(epoch))
    assert len(first.emitted[0]) == 1
    step = Step(epoch=epoch, seq=2, rows=(row(1, 1),))
    second = engine.execute(step)
    assert engine.execute(step) is second
    # Had it run twice, three tokens would be known and this one would not be the next.
    third = engine.execute(Step(epoch=epoch, seq=3, rows=(row(1, 1),)))
    tokens = (*PROMPT, *first.emitted[0], *second.emitted[0])
    assert engine.execute(whole(next(epochs), tokens=tokens, blocks=(4, 5, 6))).emitted == third.emitted


def test_old_epochs_and_gaps_are_fenced(engine: Engine, epochs: Iterator[int]) -> None:
    next(epochs)
    epoch = next(epochs)
    engine.execute(replace(whole(epoch), seq=17))
    for old, seq in [(epoch - 1, 18), (epoch, 16), (epoch, 19)]:
        with pytest.raises(FencedError):
            engine.execute(Step(epoch=old, seq=seq, rows=(row(1, 1),)))
    assert engine.execute(Step(epoch=epoch, seq=18, rows=(row(1, 1),))).emitted[0]


def test_a_new_epoch_drops_requests_and_keeps_tagged_blocks(engine: Engine, epochs: Iterator[int]) -> None:
    epoch = next(epochs)
    first = engine.execute(whole(epoch))
    engine.execute(Step(epoch=epoch, seq=2, sealed=((1, KEYS[1]), (2, KEYS[2]))))
    epoch = next(epochs)
    with pytest.raises(InvalidRequestError, match="request 1 is not held"):
        engine.execute(Step(epoch=epoch, seq=1, rows=(row(1, 1),)))
    outcome = engine.execute(whole(epoch, handle=1, blocks=(1, 2, 9), **hit(KEYS[1:3], 1, 2)))
    assert not outcome.refused
    assert outcome.emitted == first.emitted


def test_a_hit_on_other_content_is_refused_alone(engine: Engine, epochs: Iterator[int]) -> None:
    epoch = next(epochs)
    engine.execute(whole(epoch))
    engine.execute(Step(epoch=epoch, seq=2, sealed=((1, KEYS[1]),)))
    for seq, keys in [(3, (KEYS[2],)), (4, (KEYS[1], KEYS[2]))]:
        blocks = (1, 2)[: len(keys)]
        fresh = new(2, (*blocks, 9, 10), **hit(keys, *blocks))
        rows = (row(2, len(PROMPT) - fresh.num_computed), row(1, 1))
        outcome = engine.execute(Step(epoch=epoch, seq=seq, fresh=(fresh,), rows=rows))
        assert outcome.refused == (2,)
        assert outcome.emitted[0] == () and len(outcome.emitted[1]) == 1
    with pytest.raises(InvalidRequestError, match="not held"):
        engine.execute(Step(epoch=epoch, seq=5, rows=(row(2, 1),)))


def test_a_block_that_is_claimed_again_is_no_hit_any_more(engine: Engine, epochs: Iterator[int]) -> None:
    epoch = next(epochs)
    engine.execute(whole(epoch))
    engine.execute(Step(epoch=epoch, seq=2, released=(1,), sealed=((1, KEYS[1]), (2, KEYS[2]))))
    # Block 1 with the request, block 2 by growing.
    other = Step(epoch=epoch, seq=3, fresh=(new(2, (1,), PROMPT[:5]),), rows=(row(2, 5, 2),))
    assert engine.execute(other).emitted[0]
    for seq, block, key in [(4, 1, KEYS[1]), (5, 2, KEYS[2])]:
        fresh = new(3, (block, 9, 10), **hit([key], block))
        outcome = engine.execute(Step(epoch=epoch, seq=seq, fresh=(fresh,), rows=(row(3, 1),)))
        assert outcome.refused == (3,)


def test_releases_and_seals_come_before_what_is_fresh(engine: Engine, epochs: Iterator[int]) -> None:
    epoch = next(epochs)
    first = engine.execute(whole(epoch))
    again = new(1, (1, 2, 9), **hit(KEYS[1:3], 1, 2))
    step = Step(
        epoch=epoch,
        seq=2,
        released=(1,),
        sealed=((1, KEYS[1]), (2, KEYS[2])),
        fresh=(again,),
        rows=(row(1, len(PROMPT) - again.num_computed),),
    )
    assert engine.execute(step).emitted == first.emitted


def test_a_write_into_a_sealed_block_is_a_fault_of_the_program(engine: Engine, epochs: Iterator[int]) -> None:
    epoch = next(epochs)
    engine.execute(whole(epoch))
    with pytest.raises(AssertionError, match="sealed"):
        engine.execute(Step(epoch=epoch, seq=2, sealed=((3, KEYS[3]),), rows=(row(1, 1),)))


@pytest.mark.parametrize("at_end", [True, False])
def test_logits_that_are_not_finite_fail_their_request_alone(
    engine: Engine, epochs: Iterator[int], at_end: bool
) -> None:
    alone = engine.execute(whole(next(epochs), blocks=(7, 8, 9))).emitted[0]
    epoch = next(epochs)
    tokens = (*PROMPT[:-1], POISON) if at_end else (POISON, *PROMPT[1:])
    step = Step(
        epoch=epoch,
        seq=1,
        fresh=(new(1, (1, 2, 3), tokens), new(2, (4, 5, 6))),
        rows=(row(1, len(PROMPT)), row(2, len(PROMPT))),
    )
    outcome = engine.execute(step)
    assert outcome.failed == (1,)
    assert outcome.emitted == ((), alone)
    # What the failed request left in its blocks does not reach the next owner, whose last block is part full.
    again = Step(epoch=epoch, seq=2, released=(1,), fresh=(new(3, (3, 2, 1)),), rows=(row(3, len(PROMPT)),))
    outcome = engine.execute(again)
    assert outcome.emitted == (alone,) and not outcome.failed


def test_a_step_without_rows_is_answered(engine: Engine, epochs: Iterator[int]) -> None:
    outcome = engine.execute(Step(epoch=next(epochs), seq=5, released=(404,)))
    assert (outcome.seq, outcome.emitted, outcome.refused, outcome.failed) == (5, (), (), ())


Change = Callable[[Step], Step]


def with_fresh(**changes: Any) -> Change:
    return lambda step: replace(step, fresh=(replace(step.fresh[0], **changes),))


def with_rows(*rows: Row) -> Change:
    return lambda step: replace(step, rows=rows)


BAD: dict[str, Change] = {
    "null block": with_fresh(blocks=((0, 5, 6),)),
    "block beyond the pool": with_fresh(blocks=((5, 6, NUM_BLOCKS),)),
    "negative block": with_fresh(blocks=((5, 6, -1),)),
    "one block twice": with_fresh(blocks=((5, 6, 5),)),
    "no block table": with_fresh(blocks=()),
    "a block table too many": with_fresh(blocks=((5, 6, 7), (8, 9, 10))),
    "handle that is held": with_fresh(handle=1),
    "token beyond the vocabulary": with_fresh(tokens=(*PROMPT[:-1], VOCAB_SIZE)),
    "negative token": with_fresh(tokens=(*PROMPT[:-1], -1)),
    "no tokens": with_fresh(tokens=()),
    "prompt longer than the tokens": with_fresh(num_prompt=len(PROMPT) + 1),
    "no prompt": with_fresh(num_prompt=0),
    "more tokens than the context": with_fresh(tokens=(1,) * 41),
    "computed without hits": with_fresh(num_computed=BLOCK_SIZE),
    "computed part of a block": with_fresh(hits=((5, KEYS[0]),), num_computed=BLOCK_SIZE - 1),
    "hit block that is not the request's": with_fresh(**hit(KEYS[:1], 6)),
    "hit block behind what is computed": with_fresh(hits=((5, KEYS[0]), (6, KEYS[1])), num_computed=BLOCK_SIZE),
    "more hits than blocks": with_fresh(**hit(KEYS[:2], 1, 2), blocks=((1,),)),
    "nothing left to compute": with_fresh(tokens=PROMPT[:8], **hit(KEYS[:2], 5, 6)),
    "bias beyond the vocabulary": with_fresh(sampling=SamplingParams(logit_bias={VOCAB_SIZE: 1.0})),
    "stop token beyond the vocabulary": with_fresh(
        stopping=StopParams(max_tokens=1, stop_token_ids=frozenset({VOCAB_SIZE}))
    ),
    "two fresh requests of one handle": lambda step: replace(step, fresh=step.fresh * 2),
    "sealed null block": lambda step: replace(step, sealed=((0, KEYS[0]),)),
    "row of an unknown request": with_rows(row(1, 1), row(99, 1)),
    "row of a released request": lambda step: replace(step, released=(1,)),
    "two rows of one request": with_rows(row(1, 1), row(1, 1)),
    "no new tokens": with_rows(row(1, 0)),
    "more new tokens than are known": with_rows(row(1, 2)),
    "too few blocks": with_rows(row(1, 1), row(3, len(PROMPT))),
    "new block beyond the pool": with_rows(row(1, 1, NUM_BLOCKS)),
    "new null block": with_rows(row(1, 1, 0)),
    "new blocks of two groups": with_rows(Row(handle=1, num_new=1, new_blocks=((8,), (9,)))),
    "rows that write into one block": lambda step: replace(
        with_fresh(blocks=((3, 4, 5),))(step), rows=(row(1, 1), row(2, len(PROMPT)))
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_step_that_cannot_be_carried_out_changes_nothing(engine: Engine, epochs: Iterator[int], bad: str) -> None:
    epoch = next(epochs)
    engine.execute(whole(epoch))
    expected = engine.execute(Step(epoch=epoch, seq=2, rows=(row(1, 1),)))
    epoch = next(epochs)
    engine.execute(whole(epoch))
    fresh = new(2, (5, 6, 7))
    good = Step(epoch=epoch, seq=2, fresh=(fresh,), rows=(row(1, 1), row(2, len(PROMPT))))
    short = replace(good, fresh=(fresh, new(3, (8,))))
    wrong = BAD[bad](short if bad == "too few blocks" else good)
    with pytest.raises(InvalidRequestError):
        engine.execute(wrong)
    # Neither a new epoch nor a later seq was entered, and no request was taken, dropped or advanced.
    with pytest.raises(InvalidRequestError):
        engine.execute(replace(wrong, epoch=epoch + 1, rows=(row(404, 1),)))
    outcome = engine.execute(good)
    assert outcome.emitted[0] == expected.emitted[0]
    assert len(outcome.emitted[1]) == 1


def test_the_context_ends_where_it_was_set(engine: Engine, epochs: Iterator[int]) -> None:
    epoch = next(epochs)
    outcome = engine.execute(whole(epoch, tokens=(5,) * 40, blocks=range(1, 12)))
    assert len(outcome.emitted[0]) == 1
    with pytest.raises(InvalidRequestError, match="beyond 40"):
        engine.execute(Step(epoch=epoch, seq=2, rows=(row(1, 1),)))
