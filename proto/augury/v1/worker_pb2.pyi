from augury.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TagsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TagsReply(_message.Message):
    __slots__ = ("blocks", "keys")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    blocks: bytes
    keys: bytes
    def __init__(self, blocks: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class NewRequest(_message.Message):
    __slots__ = ("handle", "tokens", "num_prompt", "num_computed", "blocks", "hit_keys", "sampling", "stopping", "max_drafts", "block_counts", "hit_blocks", "inputs", "trace")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    tokens: bytes
    num_prompt: int
    num_computed: int
    blocks: bytes
    hit_keys: bytes
    sampling: _common_pb2.SamplingParams
    stopping: _common_pb2.StopParams
    max_drafts: int
    block_counts: bytes
    hit_blocks: bytes
    inputs: _containers.RepeatedCompositeFieldContainer[_common_pb2.EncoderInput]
    trace: str
    def __init__(self, handle: _Optional[int] = ..., tokens: _Optional[bytes] = ..., num_prompt: _Optional[int] = ..., num_computed: _Optional[int] = ..., blocks: _Optional[bytes] = ..., hit_keys: _Optional[bytes] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[_common_pb2.StopParams, _Mapping]] = ..., max_drafts: _Optional[int] = ..., block_counts: _Optional[bytes] = ..., hit_blocks: _Optional[bytes] = ..., inputs: _Optional[_Iterable[_Union[_common_pb2.EncoderInput, _Mapping]]] = ..., trace: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("epoch", "seq", "released", "sealed_blocks", "sealed_keys", "fresh", "handles", "num_new", "num_drafts", "block_counts", "blocks", "encoded_counts", "encoded", "discarded")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    SEALED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEALED_KEYS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ENCODED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    released: bytes
    sealed_blocks: bytes
    sealed_keys: bytes
    fresh: _containers.RepeatedCompositeFieldContainer[NewRequest]
    handles: bytes
    num_new: bytes
    num_drafts: bytes
    block_counts: bytes
    blocks: bytes
    encoded_counts: bytes
    encoded: bytes
    discarded: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., released: _Optional[bytes] = ..., sealed_blocks: _Optional[bytes] = ..., sealed_keys: _Optional[bytes] = ..., fresh: _Optional[_Iterable[_Union[NewRequest, _Mapping]]] = ..., handles: _Optional[bytes] = ..., num_new: _Optional[bytes] = ..., num_drafts: _Optional[bytes] = ..., block_counts: _Optional[bytes] = ..., blocks: _Optional[bytes] = ..., encoded_counts: _Optional[bytes] = ..., encoded: _Optional[bytes] = ..., discarded: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("epoch", "seq", "num_emitted", "tokens", "num_drafts", "num_final", "refused", "failed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NUM_EMITTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_FINAL_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    num_emitted: bytes
    tokens: bytes
    num_drafts: bytes
    num_final: bytes
    refused: bytes
    failed: bytes
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., num_emitted: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., num_drafts: _Optional[bytes] = ..., num_final: _Optional[bytes] = ..., refused: _Optional[bytes] = ..., failed: _Optional[bytes] = ...) -> None: ...
