"""Every message survives the wire, and broken ones are told apart from sound ones."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from augury import convert
from augury.columns import ints, longs
from augury.errors import TABLE, FencedError, InvalidRequestError, from_code
from augury.types import Delta
from augury.v1 import common_pb2, kvcache_pb2, scheduler_pb2, worker_pb2
from tests.contract import strategies as some


def over_the_wire(message: Message) -> Any:
    return type(message).FromString(message.SerializeToString())


@given(value=some.proposals)
def test_proposals_round_trip(value: Any) -> None:
    assert convert.proposal_from_wire(over_the_wire(convert.proposal_to_wire(value))) == value


@given(value=some.grants)
def test_grants_round_trip(value: Any) -> None:
    assert convert.grant_from_wire(over_the_wire(convert.grant_to_wire(value))) == value


@given(value=some.steps)
def test_steps_round_trip(value: Any) -> None:
    assert convert.step_from_wire(over_the_wire(convert.step_to_wire(value))) == value


@given(value=some.outcomes)
def test_outcomes_round_trip(value: Any) -> None:
    assert convert.outcome_from_wire(over_the_wire(convert.outcome_to_wire(value))) == value


@given(value=some.generations, ticket=some.longs)
def test_submissions_round_trip(value: Any, ticket: int) -> None:
    wire = over_the_wire(convert.submit_to_wire(ticket, value))
    assert wire.ticket == ticket
    assert convert.submit_from_wire(wire) == value


@given(value=some.infos)
def test_worker_infos_round_trip(value: Any) -> None:
    assert convert.hello_from_wire(over_the_wire(convert.hello_to_wire(value))) == value


@given(value=some.descriptions)
def test_descriptions_round_trip(value: Any) -> None:
    assert convert.description_from_wire(over_the_wire(convert.description_to_wire(value))) == value


@given(spec=some.pools, holdings=some.holdings, content=some.contents)
def test_pools_round_trip_with_what_they_hold(spec: Any, holdings: Any, content: Any) -> None:
    wire = over_the_wire(convert.pool_to_wire(spec, holdings, content))
    assert convert.pool_from_wire(wire) == (spec, list(holdings), list(content))


@given(tags=some.contents)
def test_tags_round_trip(tags: Any) -> None:
    assert convert.tags_from_wire(over_the_wire(convert.tags_to_wire(tags))) == list(tags)


@given(deltas=st.lists(some.deltas, max_size=4, unique_by=lambda delta: delta.ticket))
def test_deltas_round_trip(deltas: list[Delta]) -> None:
    assert convert.deltas_from_wire(over_the_wire(convert.deltas_to_wire(deltas))) == deltas


@given(ticket=some.longs, first=some.tokens, second=some.tokens, ended=some.endeds)
def test_a_ticket_that_comes_twice_ends_with_its_last_tokens(ticket: int, first: Any, second: Any, ended: Any) -> None:
    deltas = [Delta(ticket=ticket, tokens=first), Delta(ticket=ticket, tokens=second, ended=ended)]
    assert convert.deltas_from_wire(over_the_wire(convert.deltas_to_wire(deltas))) == deltas


@pytest.mark.parametrize("code", TABLE)
def test_a_refused_proposal_raises_its_error_at_the_receiver(code: str) -> None:
    proposal = kvcache_pb2.Proposal(epoch=3, seq=4)
    wire = over_the_wire(convert.refusal_to_wire(proposal, from_code(code, "why")))
    assert (wire.epoch, wire.seq) == (3, 4)
    with pytest.raises(type(from_code(code, "")), match="why"):
        convert.grant_from_wire(wire)


CASES: list[tuple[Callable[[Any], object], Callable[[Any], Any], st.SearchStrategy[Any]]] = [
    (convert.proposal_to_wire, convert.proposal_from_wire, some.proposals),
    (convert.grant_to_wire, convert.grant_from_wire, some.grants),
    (convert.step_to_wire, convert.step_from_wire, some.steps),
    (convert.outcome_to_wire, convert.outcome_from_wire, some.outcomes),
    (lambda value: convert.submit_to_wire(1, value), convert.submit_from_wire, some.generations),
    (convert.deltas_to_wire, convert.deltas_from_wire, st.lists(some.deltas, max_size=3)),
]


@pytest.mark.parametrize(("to_wire", "from_wire", "values"), CASES, ids=lambda part: getattr(part, "__name__", ""))
@given(data=st.data())
def test_a_broken_column_is_an_invalid_request_and_nothing_else(
    to_wire: Any, from_wire: Any, values: Any, data: st.DataObject
) -> None:
    wire = to_wire(data.draw(values))
    fields = wire.DESCRIPTOR.fields
    columns = [field.name for field in fields if field.type == field.TYPE_BYTES and not field.is_repeated]
    for name in data.draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2)):
        setattr(wire, name, data.draw(st.binary(max_size=40)))
    try:
        from_wire(over_the_wire(wire))
    except InvalidRequestError as error:
        assert any(word in str(error) for word in ("column", "reason", "client"))


@pytest.mark.parametrize(
    ("from_wire", "wire"),
    [
        (convert.proposal_from_wire, kvcache_pb2.Proposal(releases=b"1234567")),
        (convert.proposal_from_wire, kvcache_pb2.Proposal(forgotten_keys=b"short")),
        (convert.proposal_from_wire, kvcache_pb2.Proposal(seal_leases=bytes(8))),
        (convert.proposal_from_wire, kvcache_pb2.Proposal(reserve_leases=bytes(8), reserve_slots=bytes(4))),
        (convert.grant_from_wire, kvcache_pb2.Grant(granted=b"\1", computed=bytes(4))),
        (convert.grant_from_wire, kvcache_pb2.Grant(blocks=bytes(4))),
        (convert.step_from_wire, worker_pb2.Step(handles=bytes(8), num_new=bytes(4))),
        (convert.step_from_wire, worker_pb2.Step(sealed_blocks=bytes(4))),
        (convert.step_from_wire, worker_pb2.Step(fresh=[worker_pb2.NewRequest(tokens=b"123")])),
        (convert.outcome_from_wire, worker_pb2.Outcome(num_emitted=ints([2]), tokens=ints([1]))),
        (convert.outcome_from_wire, worker_pb2.Outcome(num_emitted=ints([2, -1]), tokens=ints([1]))),
        (convert.pool_from_wire, kvcache_pb2.OpenPoolRequest(leases=bytes(8))),
        (convert.pool_from_wire, kvcache_pb2.OpenPoolRequest(content_blocks=bytes(4))),
        (convert.pool_from_wire, kvcache_pb2.OpenPoolRequest(groups=[common_pb2.KvGroup(block_size=0)])),
        (convert.hello_from_wire, scheduler_pb2.WorkerHello(groups=[common_pb2.KvGroup(block_size=4, window=0)])),
        (convert.description_from_wire, scheduler_pb2.Description(workers=[scheduler_pb2.WorkerState(misses={99: 1})])),
        (convert.submit_from_wire, scheduler_pb2.Submit(prompt=b"12345")),
        (convert.submit_from_wire, scheduler_pb2.Submit(client=b"short")),
        (convert.deltas_from_wire, scheduler_pb2.ServerMessage(tickets=bytes(8))),
        (
            convert.deltas_from_wire,
            scheduler_pb2.ServerMessage(ended=[scheduler_pb2.Ended(ticket=1, reason=common_pb2.END_REASON_STOP)]),
        ),
    ],
)
def test_broken_messages(from_wire: Callable[[Any], object], wire: Message) -> None:
    with pytest.raises(InvalidRequestError):
        from_wire(over_the_wire(wire))


def test_an_end_without_a_known_reason_is_invalid() -> None:
    wire = convert.deltas_to_wire([Delta(ticket=1)])
    for reason in (common_pb2.END_REASON_UNSPECIFIED, 99):
        wire.ended.add(ticket=1, reason=reason)
        with pytest.raises(InvalidRequestError, match="reason"):
            convert.deltas_from_wire(over_the_wire(wire))
        wire.ClearField("ended")


def test_columns_are_little_endian() -> None:
    assert ints([1, -1]).hex() == "01000000ffffffff"
    assert longs([1, -2]).hex() == "0100000000000000feffffffffffffff"


@given(value=st.integers(2**31, 2**40) | st.integers(-(2**40), -(2**31) - 1))
def test_a_value_that_does_not_fit_its_column_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        ints([value])


def test_a_stale_epoch_is_fenced_at_the_receiver() -> None:
    wire = convert.refusal_to_wire(kvcache_pb2.Proposal(epoch=1), FencedError("epoch 1, but the pool is at 2"))
    with pytest.raises(FencedError, match="the pool is at 2"):
        convert.grant_from_wire(wire)
