"""API keys: which client a request comes from, told by a file that may change while the gateway runs."""

import logging
import re
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

_COMMENT = re.compile(r"(?:^|\s)#.*")
_BEARER = re.compile(r"bearer +([\x21-\x7e]+) *", re.IGNORECASE)
_log = logging.getLogger(__name__)


class _Entry(NamedTuple):
    """The digest of a key, and the client it belongs to."""

    digest: bytes
    client: bytes


_Stamp = tuple[int, int, int]
"""Changes whenever the file does: inode, length, time of change."""


class ApiKeys:
    """The keys of a file: one a line, and behind it, where wished, the name of its client; ``#`` begins a comment.

    Keys with the same name belong to one client, so that a key can be replaced by another; a key without a name is a
    client of its own. The file is read again when it changes. While it cannot be read, or holds no key, the earlier
    keys remain in force, and that is logged. Keys are kept as digests.
    """

    def __init__(self, file: Path) -> None:
        """Raises ValueError where the file cannot be read, has a faulty line or holds no key."""
        self._file = file
        self._stamp = _stamp(file)
        self._entries = _read(file)
        self._trouble: str | None = None

    def client(self, authorization: str) -> bytes | None:
        """32 bytes that stand for the client, from an ``Authorization: Bearer`` header; None where it has no key."""
        self._refresh()
        match = _BEARER.fullmatch(authorization)
        presented = _digest(match[1] if match else "", b"augury-api-key")
        # All are compared, so that the time tells nothing.
        found = [entry.client for entry in self._entries if compare_digest(entry.digest, presented)]
        return found[0] if found else None

    def _refresh(self) -> None:
        try:
            stamp = _stamp(self._file)
            if stamp != self._stamp:
                self._entries = _read(self._file)
                self._stamp, self._trouble = stamp, None
                _log.info("the API keys were read again", extra={"num_keys": len(self._entries)})
        except ValueError as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                _log.error("the API keys cannot be read again", extra={"reason": self._trouble})


def _stamp(file: Path) -> _Stamp:
    try:
        status = file.stat()
    except OSError as error:
        raise ValueError(f"the API keys cannot be read: {error.strerror}: {file}") from None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(file: Path) -> list[_Entry]:
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise ValueError(f"the API keys cannot be read: {error.strerror}: {file}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the API keys cannot be read: {file} is no text") from None
    clients: dict[bytes, bytes] = {}
    for number, line in enumerate(lines, 1):
        words = _COMMENT.sub("", line).split(maxsplit=1)
        if not words:
            continue
        key, *name = words
        if not (key.isascii() and key.isprintable()):
            raise ValueError(f"{file}, line {number}: a key has characters that are not printable ASCII")
        digest = _digest(key, b"augury-api-key")
        if digest in clients:
            raise ValueError(f"{file}, line {number}: the key of an earlier line")
        clients[digest] = _digest(name[0].strip(), b"augury-name") if name else _digest(key, b"augury-client")
    if not clients:
        raise ValueError(f"{file} holds no API key")
    return [_Entry(digest, client) for digest, client in clients.items()]


def _digest(text: str, domain: bytes) -> bytes:
    return blake2b(text.encode(), digest_size=32, person=domain).digest()
