"""Any value of every data type that goes over a wire."""

from typing import TypeVar

from hypothesis import strategies as st

from augury.geometry import KvGroup
from augury.keys import KEY_BYTES
from augury.types import (
    Delta,
    Description,
    EncoderInput,
    Ended,
    EndReason,
    Generation,
    Grant,
    Granted,
    Holding,
    Miss,
    NewRequest,
    Outcome,
    PoolSpec,
    Proposal,
    Reserve,
    Row,
    SamplingParams,
    Seal,
    Step,
    StopParams,
    WorkerInfo,
    WorkerStatus,
)

T = TypeVar("T")

longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
counts = st.integers(0, 2**32 - 1)
names = st.text(max_size=8)
keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
floats = st.floats(width=32, allow_nan=False)
"""The wire's floats have 32 bits."""


def tuples(elements: st.SearchStrategy[T], max_size: int = 4) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(elements, max_size=max_size).map(tuple)


tokens = tuples(ints, 6)

samplings = st.builds(
    SamplingParams,
    temperature=floats,
    top_k=st.none() | st.integers(1, 2**32 - 1),
    top_p=floats,
    min_p=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=floats,
    logit_bias=st.dictionaries(ints, floats, max_size=3),
    seed=st.integers(0, 2**64 - 1),
)
stoppings = st.builds(StopParams, max_tokens=counts, min_tokens=counts, stop_token_ids=st.frozensets(ints, max_size=3))
inputs = tuples(st.builds(EncoderInput, start=counts, length=counts, digest=st.binary(max_size=5)), 2)
generations = st.builds(
    Generation,
    request_id=names,
    prompt=tokens,
    emitted=tokens,
    sampling=samplings,
    stopping=stoppings,
    priority=ints,
    cache_salt=st.binary(max_size=5),
    max_drafts=st.none() | counts,
    inputs=inputs,
    timeout_s=st.none() | counts.map(lambda milliseconds: milliseconds / 1000),
    trace=st.none() | names,
    client=st.none() | st.binary(min_size=16, max_size=32),
)
endeds = st.builds(
    Ended,
    reason=st.sampled_from(EndReason),
    error_code=st.none() | st.text(min_size=1, max_size=5),
    error_message=st.none() | st.text(min_size=1, max_size=5),
)
small = st.integers(0, 2**31 - 1)
deltas = st.builds(
    Delta,
    ticket=longs,
    tokens=tokens,
    num_cached=small,
    num_drafts=small,
    num_accepted=small,
    waited_ms=small,
    ended=st.none() | endeds,
)
totals = st.integers(0, 2**64 - 1)
statuses = st.builds(
    WorkerStatus,
    worker_id=names,
    ready=st.booleans(),
    **dict.fromkeys(("num_running", "num_waiting", "num_blocks", "num_available", "block_size"), counts),
    **dict.fromkeys(("prompt_tokens", "generation_tokens", "hit_tokens", "query_tokens"), totals),
    **dict.fromkeys(("num_preemptions", "num_iterations", "num_refused", "num_drafts", "draft_tokens"), totals),
    **dict.fromkeys(("accepted_at", "accepted_lengths"), tuples(totals)),
    draining=st.booleans(),
    queue_tokens=totals,
    iteration_tokens=tuples(totals),
    total_iteration_tokens=totals,
    misses=st.dictionaries(st.sampled_from(Miss), totals, max_size=3),
)
positive = st.integers(1, 2**32 - 1)
full_groups = st.builds(KvGroup, block_size=positive, has_drafts=st.booleans())
window_groups = st.builds(
    KvGroup,
    block_size=positive,
    window=positive,
    has_drafts=st.just(True),
    num_retained=counts,
    num_rebuilt=st.none() | counts,
)
groups = tuples(full_groups | window_groups, 3)
descriptions = st.builds(
    Description,
    model=st.none() | st.text(min_size=1, max_size=8),
    max_model_len=st.none() | positive,
    vocab_size=st.none() | positive,
    num_parked=counts,
    workers=tuples(statuses, 2),
    flaws=tuples(names),
)
infos = st.builds(
    WorkerInfo,
    worker_id=names,
    incarnation=names,
    address=names,
    model=names,
    fingerprint=names,
    num_blocks=counts,
    groups=groups,
    max_model_len=counts,
    vocab_size=counts,
    num_prefill_lookahead=counts,
    max_drafts=counts,
    encoder_budget=counts,
    encoder_cache=counts,
)
pools = st.builds(
    PoolSpec,
    pool=names,
    incarnation=names,
    fingerprint=names,
    epoch=longs,
    num_blocks=counts,
    groups=groups,
)
contents = tuples(st.tuples(ints, keys))


def per_group(parts: st.SearchStrategy[tuple[T, ...]], num_groups: int) -> st.SearchStrategy[tuple[tuple[T, ...], ...]]:
    """One part for each group; all empty is written as nothing at all."""
    return st.tuples(*[parts] * num_groups).map(lambda row: row if any(row) else ())


@st.composite
def some_holdings(draw: st.DrawFn) -> tuple[Holding, ...]:
    num_groups = draw(st.integers(1, 3))
    holdings = []
    for lease in draw(tuples(longs)):
        seals = draw(tuples(st.builds(Seal, lease=st.just(lease), group=ints, index=ints, key=keys), 2))
        holdings.append(Holding(lease=lease, blocks=draw(st.tuples(*[tokens] * num_groups)), seals=seals))
    return tuple(holdings)


holdings = some_holdings()
proposals = st.builds(
    Proposal,
    pool=names,
    epoch=longs,
    seq=longs,
    forgotten=tuples(keys),
    seals=tuples(st.builds(Seal, lease=longs, group=ints, index=ints, key=keys)),
    releases=tuples(longs),
    reserves=st.integers(1, 3).flatmap(
        lambda num_groups: tuples(
            st.builds(
                Reserve,
                lease=longs,
                num_slots=ints,
                num_ahead=ints,
                num_computed=ints,
                keys=per_group(tuples(keys), num_groups),
                trace=st.none() | st.text(min_size=1, max_size=8),
            )
        )
    ),
)
grants = st.builds(
    Grant,
    epoch=longs,
    seq=longs,
    reserves=st.integers(1, 3).flatmap(
        lambda num_groups: tuples(
            st.none()
            | st.builds(
                Granted,
                blocks=st.tuples(*[tokens] * num_groups),
                num_computed=ints,
                num_sealed=st.tuples(*[ints] * num_groups),
                miss=st.none() | st.sampled_from(Miss),
            )
        )
    ),
    num_available=counts,
)
steps = st.builds(
    Step,
    epoch=longs,
    seq=longs,
    released=tuples(longs),
    sealed=contents,
    fresh=tuples(
        st.builds(
            NewRequest,
            handle=longs,
            tokens=tokens,
            num_prompt=counts,
            num_computed=counts,
            blocks=tuples(tokens, 3),
            hits=contents,
            sampling=samplings,
            stopping=stoppings,
            max_drafts=st.none() | counts,
            inputs=inputs,
            trace=st.none() | names,
        ),
        max_size=2,
    ),
    rows=st.integers(1, 3).flatmap(
        lambda num_groups: tuples(
            st.builds(
                Row,
                handle=longs,
                num_new=ints,
                num_drafts=ints,
                new_blocks=per_group(tokens, num_groups),
                encoded=tuples(ints, 2),
            )
        )
    ),
    discarded=tuples(st.binary(max_size=4), 2),
)


@st.composite
def outcomes_of_rows(draw: st.DrawFn) -> Outcome:
    rows = draw(tuples(st.tuples(tokens, ints, ints)))
    emitted, num_drafts, num_final = zip(*rows, strict=True) if rows else ((), (), ())
    return Outcome(
        epoch=draw(longs),
        seq=draw(longs),
        emitted=emitted,
        num_drafts=num_drafts,
        num_final=num_final,
        refused=draw(tuples(longs)),
        failed=draw(tuples(longs)),
    )


outcomes = outcomes_of_rows()
