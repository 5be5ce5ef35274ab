"""Spans of the KV service: the lookups of traced requests, and what they found."""

from augury import tracing
from augury.tracing import Value
from augury.types import Grant, Granted, Proposal

SERVICE = "kvcache"


def record(proposal: Proposal, grant: Grant, began_ns: int) -> None:
    """A span for each reservation of a traced request, from ``began_ns`` (since 1970) until now."""
    for reserve, granted in zip(proposal.reserves, grant.reserves, strict=True):
        if reserve.trace is not None:
            attributes = {"augury.pool": proposal.pool, **_found(granted)}
            tracing.start(SERVICE, "lookup", reserve.trace, attributes, began_ns).end()


def _found(granted: Granted | None) -> dict[str, Value]:
    if granted is None:
        return {"augury.granted": False}
    found: dict[str, Value] = {"augury.granted": True, "augury.hit_tokens": granted.num_computed}
    return found if granted.miss is None else {**found, "augury.miss": granted.miss.value}
