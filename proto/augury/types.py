"""The data types that services exchange, as they look inside a service (see convert.py for the wire)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from augury.geometry import KvGroup


class EndReason(Enum):
    """Why a request ended. Every accepted request ends in exactly one of these."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Miss(Enum):
    """Why a lookup in the prefix cache ended where it did, short of the whole blocks of the prompt."""

    COLD = "cold"
    EVICTED = "evicted"
    SALT = "salt"
    LOOKAHEAD = "lookahead"
    WINDOW = "window"
    ALIGNMENT = "alignment"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInput:
    """A stretch of the prompt whose embeddings an encoder makes: ``length`` tokens from position ``start`` on.

    ``digest`` names its content in block keys.
    """

    start: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a token is drawn. Noise is a function of (seed, position), so one seed means one text.

    ``temperature`` 0 is greedy. ``top_k`` None, ``top_p`` 1, ``min_p`` 0 and ``repetition_penalty`` 1 are off.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopParams:
    """When a request ends by itself. ``stop_token_ids`` holds the EOS ids too, unless the client ignores them."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a client wants generated. ``emitted`` holds tokens it already has: a continuation starts after them.

    ``max_drafts`` bounds the drafts verified in one step; None leaves it to the worker. ``inputs`` stand in order and
    do not overlap. What has not ended ``timeout_s`` seconds after it was submitted is of no use. ``trace`` is a W3C
    traceparent. ``client`` stands for whom it is for, None where all are one.
    """

    request_id: str
    prompt: tuple[int, ...]
    emitted: tuple[int, ...] = ()
    sampling: SamplingParams
    stopping: StopParams
    priority: int = 0
    cache_salt: bytes = b""
    max_drafts: int | None = None
    inputs: tuple[EncoderInput, ...] = ()
    timeout_s: float | None = None
    trace: str | None = None
    client: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The one terminal event of a request. ``error_code`` and ``error_message`` are set iff it failed."""

    reason: EndReason
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one iteration brought for one request: new tokens, and its end if it ended.

    ``num_cached`` prompt tokens were taken from the prefix cache when the request was first admitted, ``waited_ms``
    after it was submitted. ``num_drafts``
    were verified in this iteration, and ``num_accepted`` of them became text.
    """

    ticket: int
    tokens: tuple[int, ...] = ()
    num_cached: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    waited_ms: int = 0
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker's state, and what it has done since it registered.

    ``num_available`` blocks are free or cached. ``query_tokens`` were looked up in the prefix cache, ``hit_tokens``
    found; ``misses[reason]`` lookups ended short for that reason. ``num_drafts`` counts steps of a request that
    verified drafts, ``accepted_at[i]`` how often draft i of a step became text, ``accepted_lengths[k]`` how often k of
    a step's drafts did, ``iteration_tokens[k]`` how often the number of an iteration's tokens had k bits, and
    ``total_iteration_tokens`` is the sum of these numbers. A worker that is ``draining`` gets no new requests.
    ``queue_tokens`` are known and have yet to be computed.
    """

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
    accepted_at: tuple[int, ...]
    accepted_lengths: tuple[int, ...]
    misses: Mapping[Miss, int]
    draining: bool = False
    queue_tokens: int = 0
    iteration_tokens: tuple[int, ...] = ()
    total_iteration_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A scheduler's workers. ``max_model_len`` (tokens) and ``vocab_size`` fit them all; None without workers.

    ``flaws`` says in words what does not work as it should though requests are answered.
    """

    model: str | None
    max_model_len: int | None
    vocab_size: int | None
    num_parked: int
    workers: tuple[WorkerStatus, ...]
    flaws: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker says of itself when it registers. ``num_blocks`` includes the null block 0.

    ``num_prefill_lookahead`` is mtp_semantics rule A; ``max_drafts`` the drafts it proposes at most, and so the slots
    it may write past the known tokens. An encoder makes ``encoder_budget`` embeddings in a step at most, and
    ``encoder_cache`` are kept; 0 without one.
    """

    worker_id: str
    incarnation: str
    address: str
    model: str
    fingerprint: str
    num_blocks: int
    groups: tuple[KvGroup, ...]
    max_model_len: int
    vocab_size: int
    num_prefill_lookahead: int = 0
    max_drafts: int = 0
    encoder_budget: int = 0
    encoder_cache: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """One worker's block pool under one epoch. Cached content survives a new epoch of the same incarnation."""

    pool: str
    incarnation: str
    fingerprint: str
    epoch: int
    num_blocks: int
    groups: tuple[KvGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The block at ``index`` of a lease's table of ``group`` is final and findable under ``key`` from now on."""

    lease: int
    index: int
    key: bytes
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A lease as its scheduler knows it: the block table of each group, and which blocks of it are sealed."""

    lease: int
    blocks: tuple[tuple[int, ...], ...]
    seals: tuple[Seal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """A lease shall hold ``num_slots`` slots in all; in window groups only those up to ``num_ahead`` past the computed
    tokens, and none that no window reaches again.

    ``num_computed`` tokens are computed. Where the lease is new, ``keys[group]`` are looked up instead, in order.
    """

    lease: int
    num_slots: int
    num_ahead: int
    num_computed: int = 0
    keys: tuple[tuple[bytes, ...], ...] = ()
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One iteration's wishes for one pool, carried out in the order: forget, seal, release, reserve."""

    pool: str
    epoch: int
    seq: int
    forgotten: tuple[bytes, ...] = ()
    seals: tuple[Seal, ...] = ()
    releases: tuple[int, ...] = ()
    reserves: tuple[Reserve, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Blocks appended to each group's table of a lease; the null block stands where a window has passed.

    For a new lease, the KV of ``num_computed`` tokens is there already, in whole blocks of every group; the first
    ``num_sealed[group]`` entries of a table are never to be sealed by the lease: hit, or not exact. ``miss`` tells why
    the hit ended, None where all keys were found.
    """

    blocks: tuple[tuple[int, ...], ...]
    num_computed: int = 0
    num_sealed: tuple[int, ...] = ()
    miss: Miss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The answer to a proposal: one entry for each reserve, None where the pool was too full."""

    epoch: int
    seq: int
    reserves: tuple[Granted | None, ...]
    num_available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request the worker does not hold. ``tokens`` are prompt and emitted; ``num_computed`` of them were hit.

    ``blocks[group]`` is a block table; ``hits`` are the hit blocks in them and the keys they must carry.
    """

    handle: int
    tokens: tuple[int, ...]
    num_prompt: int
    num_computed: int
    blocks: tuple[tuple[int, ...], ...]
    hits: tuple[tuple[int, bytes], ...]
    sampling: SamplingParams
    stopping: StopParams
    max_drafts: int | None = None
    inputs: tuple[EncoderInput, ...] = ()
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request's share of a step, after ``new_blocks[group]`` joined its block tables; empty where none did.

    ``num_new`` known tokens are computed; where they reach the last known one, the first ``num_drafts`` drafts that the
    worker holds are verified behind them. ``encoded`` are indices of the request's inputs to encode before.
    """

    handle: int
    num_new: int
    num_drafts: int = 0
    new_blocks: tuple[tuple[int, ...], ...] = ()
    encoded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One iteration of one worker, carried out in the order: released, sealed, fresh, rows.

    The embeddings of encoder inputs with the ``discarded`` digests are needed no more.
    """

    epoch: int
    seq: int
    released: tuple[int, ...] = ()
    sealed: tuple[tuple[int, bytes], ...] = ()
    fresh: tuple[NewRequest, ...] = ()
    rows: tuple[Row, ...] = ()
    discarded: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step brought, by row.

    ``emitted`` are accepted drafts and the bonus token (none for a prefill chunk that does not end the prompt),
    ``num_drafts`` are held for the request's next step, and of ``num_final`` leading tokens no later step rewrites the
    KV, draft layers included. The numbers of a refused row mean nothing. A row that is not finite behind accepted
    drafts emits those; its request fails in the next step.
    """

    epoch: int
    seq: int
    emitted: tuple[tuple[int, ...], ...]
    num_drafts: tuple[int, ...]
    num_final: tuple[int, ...]
    refused: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
