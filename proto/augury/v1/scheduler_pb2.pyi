from augury.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientMessage(_message.Message):
    __slots__ = ("submit", "cancel")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    cancel: Cancel
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("ticket", "request_id", "prompt", "emitted", "sampling", "stopping", "priority", "cache_salt", "max_drafts", "inputs", "timeout_ms", "trace", "client")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    request_id: str
    prompt: bytes
    emitted: bytes
    sampling: _common_pb2.SamplingParams
    stopping: _common_pb2.StopParams
    priority: int
    cache_salt: bytes
    max_drafts: int
    inputs: _containers.RepeatedCompositeFieldContainer[_common_pb2.EncoderInput]
    timeout_ms: int
    trace: str
    client: bytes
    def __init__(self, ticket: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt: _Optional[bytes] = ..., emitted: _Optional[bytes] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[_common_pb2.StopParams, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., max_drafts: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[_common_pb2.EncoderInput, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., trace: _Optional[str] = ..., client: _Optional[bytes] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    def __init__(self, ticket: _Optional[int] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("tickets", "counts", "tokens", "cached", "drafts", "accepted", "ended", "waited_ms")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    tickets: bytes
    counts: bytes
    tokens: bytes
    cached: bytes
    drafts: bytes
    accepted: bytes
    ended: _containers.RepeatedCompositeFieldContainer[Ended]
    waited_ms: bytes
    def __init__(self, tickets: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., cached: _Optional[bytes] = ..., drafts: _Optional[bytes] = ..., accepted: _Optional[bytes] = ..., ended: _Optional[_Iterable[_Union[Ended, _Mapping]]] = ..., waited_ms: _Optional[bytes] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("ticket", "reason", "error_code", "error_message")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    reason: _common_pb2.EndReason
    error_code: str
    error_message: str
    def __init__(self, ticket: _Optional[int] = ..., reason: _Optional[_Union[_common_pb2.EndReason, str]] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("model", "max_model_len", "vocab_size", "workers", "num_parked", "flaws")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_PARKED_FIELD_NUMBER: _ClassVar[int]
    FLAWS_FIELD_NUMBER: _ClassVar[int]
    model: str
    max_model_len: int
    vocab_size: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    num_parked: int
    flaws: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., num_parked: _Optional[int] = ..., flaws: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("worker_id", "ready", "num_running", "num_waiting", "num_blocks", "num_available", "block_size", "prompt_tokens", "generation_tokens", "hit_tokens", "query_tokens", "num_preemptions", "num_iterations", "num_refused", "num_drafts", "draft_tokens", "accepted_at", "accepted_lengths", "misses", "draining", "queue_tokens", "iteration_tokens", "total_iteration_tokens")
    class MissesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ITERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    ready: bool
    num_running: int
    num_waiting: int
    num_blocks: int
    num_available: int
    block_size: int
    prompt_tokens: int
    generation_tokens: int
    hit_tokens: int
    query_tokens: int
    num_preemptions: int
    num_iterations: int
    num_refused: int
    num_drafts: int
    draft_tokens: int
    accepted_at: _containers.RepeatedScalarFieldContainer[int]
    accepted_lengths: _containers.RepeatedScalarFieldContainer[int]
    misses: _containers.ScalarMap[int, int]
    draining: bool
    queue_tokens: int
    iteration_tokens: _containers.RepeatedScalarFieldContainer[int]
    total_iteration_tokens: int
    def __init__(self, worker_id: _Optional[str] = ..., ready: _Optional[bool] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_available: _Optional[int] = ..., block_size: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., generation_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., query_tokens: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_iterations: _Optional[int] = ..., num_refused: _Optional[int] = ..., num_drafts: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_at: _Optional[_Iterable[int]] = ..., accepted_lengths: _Optional[_Iterable[int]] = ..., misses: _Optional[_Mapping[int, int]] = ..., draining: _Optional[bool] = ..., queue_tokens: _Optional[int] = ..., iteration_tokens: _Optional[_Iterable[int]] = ..., total_iteration_tokens: _Optional[int] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("hello", "heartbeat", "leaving")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    heartbeat: Heartbeat
    leaving: Leaving
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("worker_id", "incarnation", "address", "model", "fingerprint", "num_blocks", "groups", "max_model_len", "vocab_size", "num_prefill_lookahead", "max_drafts", "encoder_budget", "encoder_cache")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_BUDGET_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    address: str
    model: str
    fingerprint: str
    num_blocks: int
    groups: _containers.RepeatedCompositeFieldContainer[_common_pb2.KvGroup]
    max_model_len: int
    vocab_size: int
    num_prefill_lookahead: int
    max_drafts: int
    encoder_budget: int
    encoder_cache: int
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., num_blocks: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[_common_pb2.KvGroup, _Mapping]]] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., num_prefill_lookahead: _Optional[int] = ..., max_drafts: _Optional[int] = ..., encoder_budget: _Optional[int] = ..., encoder_cache: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerOrders(_message.Message):
    __slots__ = ("registered", "released")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    registered: bool
    released: bool
    def __init__(self, registered: _Optional[bool] = ..., released: _Optional[bool] = ...) -> None: ...
