"""Any value of every data type that goes over a wire."""

from typing import TypeVar

from hypothesis import strategies as st

from augury.keys import KEY_BYTES
from augury.types import (
    Delta,
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
)
endeds = st.builds(
    Ended,
    reason=st.sampled_from(EndReason),
    error_code=st.none() | st.text(min_size=1, max_size=5),
    error_message=st.none() | st.text(min_size=1, max_size=5),
    num_cached=counts,
)
deltas = st.builds(Delta, ticket=longs, tokens=tokens, ended=st.none() | endeds)
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
)
pools = st.builds(
    PoolSpec, pool=names, incarnation=names, fingerprint=names, epoch=longs, num_blocks=counts, block_size=counts
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
        ),
        max_size=2,
    ),
    rows=tuples(st.builds(Row, handle=longs, num_new=ints, new_blocks=tokens)),
)
outcomes = st.builds(
    Outcome, epoch=longs, seq=longs, emitted=tuples(tokens), refused=tuples(longs), failed=tuples(longs)
)
