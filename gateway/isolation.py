"""Which requests may share cached prefixes: those with the same cache salt, and no others."""

from hashlib import blake2b


def cache_salt(client: bytes | None, own: str | None, shared: str | None) -> bytes:
    """The salt at the root of a request's block keys.

    Requests of one ``client`` (gateway.api_keys; None where all are one) share cached prefixes if the salts that they
    carry themselves, ``own``, are equal too. Requests of different clients never do, unless ``own`` is ``shared``, the
    salt that the operator opened to all. Whoever sends that one agrees that others can find out, by the time an answer
    takes, whether a prompt began like this one: it is for prompts of which nothing is secret.
    """
    if own is not None and own == shared:
        return _digest(own, b"", b"augury-shared")
    if client is None and own is None:
        return b""
    return _digest(own or "", client or b"", b"augury-salt")


def _digest(text: str, key: bytes, domain: bytes) -> bytes:
    return blake2b(text.encode(), digest_size=32, key=key, person=domain).digest()
