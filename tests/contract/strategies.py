"""Any value of every data type that goes over a wire."""

from typing import TypeVar

from hypothesis import strategies as st

from augury.keys import KEY_BYTES
from augury.types import (
    Delta,
    Description,
    Ended,
    EndReason,
    Generation,
    Grant,
    Granted,
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
)
positive = st.integers(1, 2**32 - 1)
descriptions = st.builds(
    Description,
    model=st.none() | st.text(min_size=1, max_size=8),
    max_model_len=st.none() | positive,
    vocab_size=st.none() | positive,
    num_parked=counts,
    workers=tuples(statuses, 2),
)
infos = st.builds(
    WorkerInfo,
    worker_id=names,
    incarnation=names,
    address=names,
    model=names,
    fingerprint=names,
    num_blocks=counts,
    block_size=counts,
    max_model_len=counts,
    vocab_size=counts,
    num_prefill_lookahead=counts,
    max_drafts=counts,
)
pools = st.builds(
    PoolSpec,
    pool=names,
    incarnation=names,
    fingerprint=names,
    epoch=longs,
    num_blocks=counts,
    block_size=counts,
)
proposals = st.builds(
    Proposal,
    pool=names,
    epoch=longs,
    seq=longs,
    forgotten=tuples(keys),
    seals=tuples(st.builds(Seal, lease=longs, index=ints, key=keys)),
    releases=tuples(longs),
    reserves=tuples(st.builds(Reserve, lease=longs, num_slots=ints, keys=tuples(keys))),
)
grants = st.builds(
    Grant,
    epoch=longs,
    seq=longs,
    reserves=tuples(st.none() | st.builds(Granted, num_hit_blocks=ints, blocks=tokens)),
    num_available=counts,
)
steps = st.builds(
    Step,
    epoch=longs,
    seq=longs,
    released=tuples(longs),
    sealed=tuples(st.tuples(ints, keys)),
    fresh=tuples(
        st.builds(
            NewRequest,
            handle=longs,
            tokens=tokens,
            num_prompt=counts,
            num_computed=counts,
            blocks=tokens,
            hit_keys=tuples(keys),
            sampling=samplings,
            stopping=stoppings,
            max_drafts=st.none() | counts,
        ),
        max_size=2,
    ),
    rows=tuples(st.builds(Row, handle=longs, num_new=ints, num_drafts=ints, new_blocks=tokens)),
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
