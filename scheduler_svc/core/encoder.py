"""Encoder inputs (images and the like): which are encoded with a chunk, how far a chunk may reach, when they are let go.

An input is encoded whole, in the step whose chunk first needs one of its embeddings, and kept at the worker until
nothing can need them again. Modules read ``lookahead`` tokens past the chunk, so the window of need is shifted by that
many (mtp_semantics rule G, §2.8). All lengths are in tokens, of which each has one embedding.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from augury.errors import InvalidRequestError
from augury.types import EncoderInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """``fresh`` are indices of inputs to encode; the chunk may reach up to position ``limit``, None means anywhere."""

    fresh: tuple[int, ...] = ()
    limit: int | None = None


class EncoderCache:
    """The embeddings that one worker keeps, by the digest of what they show.

    An input that no request refers to stays until its room is wanted: the same image may come again. A request never
    waits for two inputs at once, so whoever holds one can go on and let it go; nobody waits in a circle.
    """

    def __init__(self, budget: int, capacity: int) -> None:
        self.budget = budget
        self.capacity = capacity
        self._lengths: dict[bytes, int] = {}
        self._holders: dict[bytes, set[int]] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._dropped: list[bytes] = []

    @property
    def num_held(self) -> int:
        """Embeddings that some request needs."""
        return sum(self._lengths[digest] for digest in self._holders)

    def check(self, inputs: Sequence[EncoderInput], num_prompt: int) -> None:
        """Raise InvalidRequestError unless ``inputs`` lie in the prompt one after another, each small enough."""
        largest, end = min(self.budget, self.capacity), 0
        for item in inputs:
            if item.length < 1 or item.start < end or item.start + item.length > num_prompt:
                raise InvalidRequestError(
                    f"an input at {item.start} of {item.length} tokens overlaps or leaves the prompt"
                )
            if item.length > largest:
                raise InvalidRequestError(f"an input of {item.length} tokens, where the encoder takes {largest}")
            end = item.start + item.length

    def plan(self, inputs: Sequence[EncoderInput], start: int, reach: int, budget: int) -> Encoding:
        """What a chunk that begins at ``start`` and whose tokens and lookahead end at ``reach`` needs.

        ``budget`` embeddings may still be made in this step. The first input that cannot be had bounds the chunk to
        where that input starts; the modules' read-ahead into it is then made good from the frontier on.
        """
        fresh: list[int] = []
        num_fresh = 0
        room = self.capacity - self.num_held
        for index, item in enumerate(inputs):
            if item.start >= reach:
                break
            if item.start + item.length <= start:
                continue
            if item.digest in self._holders or any(inputs[other].digest == item.digest for other in fresh):
                continue
            kept = item.digest in self._lengths
            if item.length > room or (not kept and num_fresh + item.length > budget):
                return Encoding(fresh=tuple(fresh), limit=max(item.start, start))
            room -= item.length
            if not kept:
                fresh.append(index)
                num_fresh += item.length
        return Encoding(fresh=tuple(fresh))

    def take(self, handle: int, inputs: Sequence[EncoderInput], start: int, reach: int) -> None:
        """The chunk runs: its inputs are held for the request, and room is made for those that are new."""
        for item in inputs:
            if item.start < reach and item.start + item.length > start:
                self._idle.pop(item.digest, None)
                self._lengths[item.digest] = item.length
                self._holders.setdefault(item.digest, set()).add(handle)
        while sum(self._lengths.values()) > self.capacity:
            digest, _ = self._idle.popitem(last=False)
            del self._lengths[digest]
            self._dropped.append(digest)

    def release(self, handle: int, inputs: Sequence[EncoderInput], end: int | None = None) -> None:
        """The request needs none of its inputs that lie before position ``end``; None means none at all."""
        for item in inputs:
            holders = self._holders.get(item.digest)
            if holders is None or handle not in holders or (end is not None and item.start + item.length > end):
                continue
            if end is not None and any(o.digest == item.digest and o.start + o.length > end for o in inputs):
                continue
            holders.discard(handle)
            if not holders:
                del self._holders[item.digest]
                self._idle[item.digest] = None

    def take_dropped(self) -> tuple[bytes, ...]:
        """What the worker may forget, since the last call."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped


def releasable(num_computed: int, num_final: int, lookahead: int) -> int:
    """Inputs that end here or before are needed no more.

    Neither the target nor a rejection comes back to a computed token. The modules do, to the rows from the frontier on;
    the worker keeps the embeddings of the last ``lookahead`` computed tokens for them, which covers all but a lag.
    """
    return num_computed if num_computed - num_final <= lookahead else num_final


def extra_of(inputs: Sequence[EncoderInput], start: int, end: int) -> bytes:
    """What the KV of positions ``start`` to ``end - 1`` depends on besides token ids, for the block keys (§3.2)."""
    return b"".join(
        item.digest + (item.start - start).to_bytes(8, "little", signed=True)
        for item in inputs
        if item.start < end and item.start + item.length > start
    )
