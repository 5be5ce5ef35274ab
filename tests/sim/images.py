"""Encoder inputs of simulated requests, and the worker's side of them."""

from random import Random

from augury.types import EncoderInput, Generation, Row, Step
from tests.sim.shape import Shape
from worker_svc.requests import Held


class Painter:
    """Puts inputs into prompts, where the workers have an encoder."""

    def __init__(self, rng: Random, shape: Shape) -> None:
        self._rng = rng
        self._largest = min(shape.encoder)
        self._left = max(1, shape.speculation.num_modules)

    def inputs(self, generation: Generation) -> tuple[EncoderInput, ...]:
        """Some, one after another; none begins where too little of the prompt is left for a chunk to end before it."""
        rng, end, found = self._rng, 0, []
        num_prompt = len(generation.prompt)
        while self._largest and rng.random() < 0.7:
            start, length = end + rng.randint(0, 6), rng.randint(1, self._largest)
            end = start + length
            if end > num_prompt or start > num_prompt - self._left:
                break
            found.append(EncoderInput(start=start, length=length, digest=b"%d" % length))
        return tuple(found)


class Encoder:
    """The embeddings that a worker keeps. Inputs with one digest show the same."""

    def __init__(self, shape: Shape) -> None:
        self._budget, self._capacity = shape.encoder
        self._kept: dict[bytes, int] = {}
        self._inputs: dict[int, tuple[EncoderInput, ...]] = {}

    def clear(self) -> None:
        """A new epoch has begun."""
        self._kept, self._inputs = {}, {}

    def take(self, step: Step) -> None:
        """Forget what the step says is needed no more, and encode what it asks for."""
        for digest in step.discarded:
            del self._kept[digest]
        self._inputs |= {new.handle: new.inputs for new in step.fresh}
        fresh = [self._inputs[row.handle][index] for row in step.rows for index in row.encoded]
        assert sum(item.length for item in fresh) <= self._budget, "more is to be encoded than a step can"
        assert not {item.digest for item in fresh} & self._kept.keys(), "an input is encoded again"
        self._kept |= {item.digest: item.length for item in fresh}
        assert sum(self._kept.values()) <= self._capacity, "more embeddings are kept than there is room for"

    def check(self, row: Row, held: Held) -> None:
        """What the row reads is there."""
        end = held.num_computed + row.num_new
        for item in self._inputs[row.handle]:
            needed = item.start < end and item.start + item.length > held.num_computed
            assert not needed or item.digest in self._kept, f"request {row.handle} reads an input that is not encoded"
