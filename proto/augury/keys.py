"""Block keys: a chained cryptographic hash names the content of a KV block and of everything before it.

The key of block i covers the model's fingerprint, the salt, all tokens up to the block's end and the ``lookahead``
tokens after it, 0 for layers that do not look ahead. Equal keys thus mean equal KV, for draft layers too (mtp_semantics
rule E). The hash has no per-process seed, so every process of a deployment makes the same keys.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

KEY_BYTES = 16
_DOMAIN = b"augury-kv-1"


def root_key(fingerprint: str, salt: bytes) -> bytes:
    """The parent of the first block's key: two salts, or two models, never share a block."""
    name = fingerprint.encode()
    return _digest(b"", len(name).to_bytes(4, "little") + name + salt)


def block_key(parent: bytes, tokens: Sequence[int], extra: bytes = b"") -> bytes:
    """The key of a block under its ``parent`` key.

    ``tokens`` are the block's and the lookahead after it, ``extra`` what else their KV depends on.
    """
    return _digest(parent, array("i", tokens).tobytes() + extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDomain:
    """How keys cover tokens: one key for each ``block_size`` tokens, over ``lookahead`` further ones."""

    block_size: int
    lookahead: int = 0

    def extend(
        self, keys: list[bytes], root: bytes, tokens: Sequence[int], extra: Callable[[int, int], bytes] | None = None
    ) -> None:
        """Append to ``keys`` the key of every further block of ``tokens`` that is full and whose lookahead is known.

        ``extra(start, end)`` tells what else the KV of these positions depends on, such as an image.
        """
        size = self.block_size
        while (end := (len(keys) + 1) * size) + self.lookahead <= len(tokens):
            parent = keys[-1] if keys else root
            start, end = end - size, end + self.lookahead
            keys.append(block_key(parent, tokens[start:end], extra(start, end) if extra else b""))


def group_key(key: bytes, group: int) -> bytes:
    """The name of the block of ``group`` that holds what ``key`` names: each group has KV of its own."""
    return key if group == 0 else key[:-1] + bytes([key[-1] ^ group])


def _digest(parent: bytes, data: bytes) -> bytes:
    return blake2b(parent + data, digest_size=KEY_BYTES, person=_DOMAIN).digest()
