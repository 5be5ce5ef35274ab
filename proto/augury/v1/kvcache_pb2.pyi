from augury.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenPoolRequest(_message.Message):
    __slots__ = ("pool", "incarnation", "fingerprint", "epoch", "num_blocks", "groups", "leases", "block_counts", "blocks", "seal_counts", "seal_groups", "seal_indices", "seal_keys", "content_blocks", "content_keys")
    POOL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEAL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    SEAL_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SEAL_INDICES_FIELD_NUMBER: _ClassVar[int]
    SEAL_KEYS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    incarnation: str
    fingerprint: str
    epoch: int
    num_blocks: int
    groups: _containers.RepeatedCompositeFieldContainer[_common_pb2.KvGroup]
    leases: bytes
    block_counts: bytes
    blocks: bytes
    seal_counts: bytes
    seal_groups: bytes
    seal_indices: bytes
    seal_keys: bytes
    content_blocks: bytes
    content_keys: bytes
    def __init__(self, pool: _Optional[str] = ..., incarnation: _Optional[str] = ..., fingerprint: _Optional[str] = ..., epoch: _Optional[int] = ..., num_blocks: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[_common_pb2.KvGroup, _Mapping]]] = ..., leases: _Optional[bytes] = ..., block_counts: _Optional[bytes] = ..., blocks: _Optional[bytes] = ..., seal_counts: _Optional[bytes] = ..., seal_groups: _Optional[bytes] = ..., seal_indices: _Optional[bytes] = ..., seal_keys: _Optional[bytes] = ..., content_blocks: _Optional[bytes] = ..., content_keys: _Optional[bytes] = ...) -> None: ...

class OpenPoolReply(_message.Message):
    __slots__ = ("num_available", "num_cached")
    NUM_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    num_available: int
    num_cached: int
    def __init__(self, num_available: _Optional[int] = ..., num_cached: _Optional[int] = ...) -> None: ...

class ClosePoolRequest(_message.Message):
    __slots__ = ("pool", "epoch")
    POOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    pool: str
    epoch: int
    def __init__(self, pool: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ClosePoolReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("pool", "epoch", "seq", "forgotten_keys", "seal_leases", "seal_indices", "seal_keys", "releases", "reserve_leases", "reserve_slots", "reserve_key_counts", "reserve_keys", "seal_groups", "reserve_ahead", "reserve_computed", "reserve_traces")
    class ReserveTracesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    POOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_KEYS_FIELD_NUMBER: _ClassVar[int]
    SEAL_LEASES_FIELD_NUMBER: _ClassVar[int]
    SEAL_INDICES_FIELD_NUMBER: _ClassVar[int]
    SEAL_KEYS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_LEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_KEY_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_KEYS_FIELD_NUMBER: _ClassVar[int]
    SEAL_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_AHEAD_FIELD_NUMBER: _ClassVar[int]
    RESERVE_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    RESERVE_TRACES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    epoch: int
    seq: int
    forgotten_keys: bytes
    seal_leases: bytes
    seal_indices: bytes
    seal_keys: bytes
    releases: bytes
    reserve_leases: bytes
    reserve_slots: bytes
    reserve_key_counts: bytes
    reserve_keys: bytes
    seal_groups: bytes
    reserve_ahead: bytes
    reserve_computed: bytes
    reserve_traces: _containers.ScalarMap[int, str]
    def __init__(self, pool: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., forgotten_keys: _Optional[bytes] = ..., seal_leases: _Optional[bytes] = ..., seal_indices: _Optional[bytes] = ..., seal_keys: _Optional[bytes] = ..., releases: _Optional[bytes] = ..., reserve_leases: _Optional[bytes] = ..., reserve_slots: _Optional[bytes] = ..., reserve_key_counts: _Optional[bytes] = ..., reserve_keys: _Optional[bytes] = ..., seal_groups: _Optional[bytes] = ..., reserve_ahead: _Optional[bytes] = ..., reserve_computed: _Optional[bytes] = ..., reserve_traces: _Optional[_Mapping[int, str]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("epoch", "seq", "granted", "computed", "block_counts", "blocks", "num_available", "error_code", "error_message", "sealed_counts", "misses")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEALED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    granted: bytes
    computed: bytes
    block_counts: bytes
    blocks: bytes
    num_available: int
    error_code: str
    error_message: str
    sealed_counts: bytes
    misses: bytes
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., granted: _Optional[bytes] = ..., computed: _Optional[bytes] = ..., block_counts: _Optional[bytes] = ..., blocks: _Optional[bytes] = ..., num_available: _Optional[int] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., sealed_counts: _Optional[bytes] = ..., misses: _Optional[bytes] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("num_prefixes",)
    NUM_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    num_prefixes: int
    def __init__(self, num_prefixes: _Optional[int] = ...) -> None: ...

class Inspection(_message.Message):
    __slots__ = ("pools", "registry")
    POOLS_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolState]
    registry: str
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolState, _Mapping]]] = ..., registry: _Optional[str] = ...) -> None: ...

class PoolState(_message.Message):
    __slots__ = ("pool", "epoch", "num_blocks", "num_free", "num_open", "num_sealed", "num_cached", "num_leases", "num_lookups", "query_tokens", "hit_tokens", "misses", "groups", "lifetime", "idle", "hottest", "num_restored", "num_adopted")
    class MissesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    POOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_FIELD_NUMBER: _ClassVar[int]
    NUM_OPEN_FIELD_NUMBER: _ClassVar[int]
    NUM_SEALED_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASES_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    HOTTEST_FIELD_NUMBER: _ClassVar[int]
    NUM_RESTORED_FIELD_NUMBER: _ClassVar[int]
    NUM_ADOPTED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    epoch: int
    num_blocks: int
    num_free: int
    num_open: int
    num_sealed: int
    num_cached: int
    num_leases: int
    num_lookups: int
    query_tokens: int
    hit_tokens: int
    misses: _containers.ScalarMap[int, int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupState]
    lifetime: Histogram
    idle: Histogram
    hottest: _containers.RepeatedCompositeFieldContainer[HotPrefix]
    num_restored: int
    num_adopted: int
    def __init__(self, pool: _Optional[str] = ..., epoch: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free: _Optional[int] = ..., num_open: _Optional[int] = ..., num_sealed: _Optional[int] = ..., num_cached: _Optional[int] = ..., num_leases: _Optional[int] = ..., num_lookups: _Optional[int] = ..., query_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., misses: _Optional[_Mapping[int, int]] = ..., groups: _Optional[_Iterable[_Union[GroupState, _Mapping]]] = ..., lifetime: _Optional[_Union[Histogram, _Mapping]] = ..., idle: _Optional[_Union[Histogram, _Mapping]] = ..., hottest: _Optional[_Iterable[_Union[HotPrefix, _Mapping]]] = ..., num_restored: _Optional[int] = ..., num_adopted: _Optional[int] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("group", "num_open", "num_sealed", "num_held")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUM_OPEN_FIELD_NUMBER: _ClassVar[int]
    NUM_SEALED_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_FIELD_NUMBER: _ClassVar[int]
    group: _common_pb2.KvGroup
    num_open: int
    num_sealed: int
    num_held: int
    def __init__(self, group: _Optional[_Union[_common_pb2.KvGroup, _Mapping]] = ..., num_open: _Optional[int] = ..., num_sealed: _Optional[int] = ..., num_held: _Optional[int] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "total")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., total: _Optional[float] = ...) -> None: ...

class HotPrefix(_message.Message):
    __slots__ = ("key", "num_tokens", "num_hits")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HITS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    num_tokens: int
    num_hits: int
    def __init__(self, key: _Optional[bytes] = ..., num_tokens: _Optional[int] = ..., num_hits: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("registry",)
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    registry: str
    def __init__(self, registry: _Optional[str] = ...) -> None: ...
