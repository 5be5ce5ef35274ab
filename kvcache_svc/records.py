"""What the registry's Redis keys are called, and what their values look like.

A pool has three keys, in one cluster slot:

    {prefix}:v2:{<fingerprint>/<pool>}:pool      string: checksum, then JSON: the pool's spec, its last epoch included,
                                                 and the number of the batch written last
    {prefix}:v2:{<fingerprint>/<pool>}:registry  hash: block key (16 raw bytes) → block number in decimal
    {prefix}:v2:{<fingerprint>/<pool>}:leases    string: JSON: an epoch, and the number of blocks of each lease then

Fingerprint and pool are percent-encoded. The registry is what a restarted service needs to find prefixes, the epoch
what it needs to refuse a scheduler that was replaced. Leases come from the schedulers, which alone know what was
computed; those in Redis, about a second old, tell people and the log who held what.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from urllib.parse import quote

import msgspec

from augury.keys import KEY_BYTES
from augury.types import PoolSpec

MAX_LEASES = 4096
"""Leases of a pool that are written down: as many as scheduler.max_running permits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The Redis keys of a pool."""

    pool: str
    registry: str
    leases: str

    @property
    def all(self) -> tuple[str, str, str]:
        return self.pool, self.registry, self.leases


def names(prefix: str, spec: PoolSpec) -> Names:
    tag = f"{quote(spec.fingerprint, safe='')}/{quote(spec.pool, safe='')}"
    base = f"{prefix}:v2:{{{tag}}}"
    return Names(pool=f"{base}:pool", registry=f"{base}:registry", leases=f"{base}:leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """A pool as last opened; batches are numbered from 1 on since it was last written anew."""

    spec: PoolSpec
    batch: int


def pool_value(record: PoolRecord) -> bytes:
    body = msgspec.json.encode(record)
    return _checksum(body) + b" " + body


def read_pool(value: object) -> PoolRecord | None:
    """The record in a value; None where it is not one that ``pool_value`` made."""
    if not isinstance(value, bytes):
        return None
    checksum, _, body = value.partition(b" ")
    if checksum != _checksum(body):
        return None
    try:
        return msgspec.json.decode(body, type=PoolRecord)
    except msgspec.MsgspecError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRecord:
    """Who held how many real blocks of the pool at an epoch."""

    epoch: int
    num_leases: int
    blocks: dict[int, int]


def leases_record(epoch: int, leases: Mapping[int, int]) -> LeasesRecord:
    return LeasesRecord(epoch=epoch, num_leases=len(leases), blocks=dict(islice(leases.items(), MAX_LEASES)))


def leases_value(record: LeasesRecord) -> bytes:
    return msgspec.json.encode(record)


def read_leases(value: object) -> LeasesRecord | None:
    if not isinstance(value, bytes):
        return None
    try:
        return msgspec.json.decode(value, type=LeasesRecord)
    except msgspec.MsgspecError:
        return None


def sound(fields: Mapping[bytes, bytes], num_blocks: int) -> dict[bytes, int]:
    """The entries that can be true: whole keys, blocks of the pool, and no block under two keys."""
    numbers = {key: _number(value) for key, value in fields.items() if len(key) == KEY_BYTES}
    holders = Counter(numbers.values())
    return {
        key: block
        for key, block in numbers.items()
        if block is not None and 0 < block < num_blocks and holders[block] == 1
    }


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) < 19 else None


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).hexdigest().encode()
