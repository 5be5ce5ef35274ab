"""Block keys: a chained cryptographic hash names the content of a KV block and of everything before it.

The key of block i covers the model's fingerprint, the salt, all tokens up to the block's end and the ``lookahead``
tokens after it. Equal keys thus mean equal KV, for draft layers too (mtp_semantics rule E). The hash has no
per-process seed, so every process of a deployment makes the same keys.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16
_DOMAIN = b"augury-kv-1"


def root_key(fingerprint: str, salt: bytes) -> bytes:
    """The parent of the first block's key: two salts, or two models, never share a block."""
    name = fingerprint.encode()
    return _digest(b"", len(name).to_bytes(4, "little") + name + salt)


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block under its ``parent`` key; ``tokens`` are the block's and the lookahead after it."""
    return _digest(parent, array("i", tokens).tobytes())


def extend_keys(keys: list[bytes], root: bytes, tokens: Sequence[int], block_size: int, lookahead: int = 0) -> None:
    """Append to ``keys`` the key of every further block of ``tokens`` that is full and whose lookahead is known."""
    while (end := (len(keys) + 1) * block_size) + lookahead <= len(tokens):
        parent = keys[-1] if keys else root
        keys.append(block_key(parent, tokens[end - block_size : end + lookahead]))


def _digest(parent: bytes, data: bytes) -> bytes:
    return blake2b(parent + data, digest_size=KEY_BYTES, person=_DOMAIN).digest()
