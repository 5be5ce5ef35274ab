"""Wire messages and data types that several services' messages hold."""

from augury.errors import InvalidRequestError
from augury.geometry import KvGroup
from augury.types import EncoderInput, Miss, SamplingParams, StopParams
from augury.v1 import common_pb2

_MISSES = {
    Miss.COLD: common_pb2.MISS_COLD,
    Miss.EVICTED: common_pb2.MISS_EVICTED,
    Miss.SALT: common_pb2.MISS_SALT,
    Miss.LOOKAHEAD: common_pb2.MISS_LOOKAHEAD,
    Miss.WINDOW: common_pb2.MISS_WINDOW,
    Miss.ALIGNMENT: common_pb2.MISS_ALIGNMENT,
    Miss.DISABLED: common_pb2.MISS_DISABLED,
}
_MISSES_BACK: dict[int, Miss] = {number: miss for miss, number in _MISSES.items()}


def miss_to_wire(miss: Miss | None) -> int:
    return common_pb2.MISS_UNSPECIFIED if miss is None else _MISSES[miss]


def miss_from_wire(number: int) -> Miss | None:
    if number == common_pb2.MISS_UNSPECIFIED:
        return None
    if number not in _MISSES_BACK:
        raise InvalidRequestError(f"unknown reason {number} of a miss")
    return _MISSES_BACK[number]


def group_to_wire(group: KvGroup) -> common_pb2.KvGroup:
    return common_pb2.KvGroup(
        block_size=group.block_size,
        window=group.window,
        has_drafts=group.has_drafts,
        num_retained=group.num_retained,
        num_rebuilt=group.num_rebuilt,
    )


def group_from_wire(wire: common_pb2.KvGroup) -> KvGroup:
    """Raises InvalidRequestError for a group that cannot be."""
    try:
        return KvGroup(
            block_size=wire.block_size,
            window=wire.window if wire.HasField("window") else None,
            has_drafts=wire.has_drafts,
            num_retained=wire.num_retained,
            num_rebuilt=wire.num_rebuilt if wire.HasField("num_rebuilt") else None,
        )
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None


def input_to_wire(item: EncoderInput) -> common_pb2.EncoderInput:
    return common_pb2.EncoderInput(start=item.start, length=item.length, digest=item.digest)


def input_from_wire(wire: common_pb2.EncoderInput) -> EncoderInput:
    return EncoderInput(start=wire.start, length=wire.length, digest=wire.digest)


def sampling_to_wire(sampling: SamplingParams) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k or 0,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        seed=sampling.seed,
    )


def sampling_from_wire(wire: common_pb2.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=wire.temperature,
        top_k=wire.top_k or None,
        top_p=wire.top_p,
        min_p=wire.min_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        logit_bias=dict(wire.logit_bias),
        seed=wire.seed,
    )


def stopping_to_wire(stopping: StopParams) -> common_pb2.StopParams:
    return common_pb2.StopParams(
        max_tokens=stopping.max_tokens, min_tokens=stopping.min_tokens, stop_token_ids=sorted(stopping.stop_token_ids)
    )


def stopping_from_wire(wire: common_pb2.StopParams) -> StopParams:
    return StopParams(
        max_tokens=wire.max_tokens, min_tokens=wire.min_tokens, stop_token_ids=frozenset(wire.stop_token_ids)
    )
