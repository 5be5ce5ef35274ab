"""Encoder inputs (images and the like): which are encoded with a chunk, how far it may reach, when they are let go.

An input is encoded whole, in the step whose chunk first needs one of its embeddings, and kept at the worker until its
last token is computed: neither the target nor a rejection comes back to it. Modules do, from their frontier on; a
worker keeps the embeddings of those rows beside their hidden states, so an input never waits for modules that lag.
Modules read ``lookahead`` tokens past the chunk, so the window of need is shifted by that many (mtp_semantics rule G,
§2.8). All lengths are in tokens, of which each has one embedding.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from augury.errors import InvalidRequestError
from augury.types import EncoderInput
from scheduler_svc.core.chunking import chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A chunk that is wished for: ``size`` of ``remaining`` tokens from position ``start`` on."""

    start: int
    size: int
    remaining: int


class EncoderCache:
    """The embeddings that one worker keeps, by the digest of what they show.

    An input that no request refers to stays until its room is wanted: the same image may come again. A request never
    needs two inputs at once to go on, so whoever holds one can compute past it and let it go: nobody waits in a circle.
    """

    def __init__(self, budget: int, capacity: int, lookahead: int) -> None:
        self._budget = budget
        self._capacity = capacity
        self._lookahead = lookahead
        self._lengths: dict[bytes, int] = {}
        self._holders: dict[bytes, set[int]] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._dropped: list[bytes] = []
        self._num_left = budget

    @property
    def num_held(self) -> int:
        """Embeddings that some request needs."""
        return sum(self._lengths[digest] for digest in self._holders)

    def begin(self) -> None:
        """A new step, with the whole budget."""
        self._num_left = self._budget

    def admit(self, handle: int, inputs: Sequence[EncoderInput], span: Span) -> tuple[int, tuple[int, ...]]:
        """The largest chunk of ``span`` whose inputs can be had, and the indices of those to encode with it.

        The first input that cannot be had ends the chunk where it starts. The modules' rows that would have read it are
        made from the frontier on, in the next chunk; so the chunk rule gives way where nothing else goes on.
        """
        fresh, limit = self._plan(inputs, span.start, span.start + span.size + self._lookahead)
        size = span.size
        if limit is not None and limit < span.start + size:
            room = limit - span.start
            size = chunk(span.remaining, room, self._lookahead) or room
        if size == 0:
            return 0, ()
        reach = span.start + size + self._lookahead
        self._take(handle, inputs, span.start, reach if limit is None else min(reach, limit))
        encoded = tuple(index for index in fresh if inputs[index].start < reach)
        self._num_left -= sum(inputs[index].length for index in encoded)
        return size, encoded

    def release(self, handle: int, inputs: Sequence[EncoderInput], num_computed: int = 0) -> None:
        """So many tokens are computed: the request holds the input that it is in the middle of, if it is, and no other.

        Not those that were read ahead of the chunk either, lest they take the room of one that comes before them.
        """
        held = {item.digest for item in inputs if item.start < num_computed < item.start + item.length}
        for digest in {item.digest for item in inputs} - held:
            holders = self._holders.get(digest, set())
            holders.discard(handle)
            if not holders and self._holders.pop(digest, None) is not None:
                self._idle[digest] = None

    def take_dropped(self) -> tuple[bytes, ...]:
        """Digests of what the worker may forget, since the last call."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _plan(self, inputs: Sequence[EncoderInput], start: int, reach: int) -> tuple[tuple[int, ...], int | None]:
        """Indices of inputs to encode for the positions ``start`` to ``reach - 1``, and where the first input begins
        that cannot be had.
        """
        fresh: dict[bytes, int] = {}
        room, left = self._capacity - self.num_held, self._num_left
        for index, item in enumerate(inputs):
            if item.start + item.length <= start or item.digest in self._holders or item.digest in fresh:
                continue
            if item.start >= reach:
                break
            cost = 0 if item.digest in self._lengths else item.length
            if item.length > room or cost > left:
                return tuple(fresh.values()), max(item.start, start)
            room, left = room - item.length, left - cost
            if cost:
                fresh[item.digest] = index
        return tuple(fresh.values()), None

    def _take(self, handle: int, inputs: Sequence[EncoderInput], start: int, reach: int) -> None:
        """The inputs at ``start`` to ``reach - 1`` are held for the request, and room is made for the new ones."""
        for item in inputs:
            if start < item.start + item.length and item.start < reach:
                self._idle.pop(item.digest, None)
                self._lengths[item.digest] = item.length
                self._holders.setdefault(item.digest, set()).add(handle)
        while sum(self._lengths.values()) > self._capacity:
            digest, _ = self._idle.popitem(last=False)
            del self._lengths[digest]
            self._dropped.append(digest)


def check_inputs(inputs: Sequence[EncoderInput], num_prompt: int, largest: int) -> None:
    """Raise InvalidRequestError unless ``inputs`` lie in the prompt in turn, of at most ``largest`` tokens."""
    end = 0
    for item in inputs:
        if item.length < 1 or item.start < end or item.start + item.length > num_prompt:
            raise InvalidRequestError(
                f"the input of {item.length} tokens at {item.start} overlaps another or leaves the prompt", "inputs"
            )
        if item.length > largest:
            raise InvalidRequestError(f"an input of {item.length} tokens, where the worker encodes {largest}", "inputs")
        end = item.start + item.length


def extra_of(inputs: Sequence[EncoderInput], start: int, end: int) -> bytes:
    """What the KV of positions ``start`` to ``end - 1`` depends on besides token ids, for the block keys (§3.2)."""
    return b"".join(
        item.digest + (item.start - start).to_bytes(8, "little", signed=True)
        for item in inputs
        if item.start < end and item.start + item.length > start
    )
