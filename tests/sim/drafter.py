"""The MTP modules of a simulated worker: they write draft KV from the frontier on and guess what comes next."""

from collections.abc import Sequence
from random import Random

from tests.sim.model import VOCAB_SIZE, draw, key_value, module_value
from tests.sim.plan import Speculation
from tests.sim.slots import Slots
from worker_svc.requests import Held


class Drafter:
    """``layers`` as in Exact. A guess is right or wrong by the KV it is made from, so wrong KV changes acceptance."""

    def __init__(self, speculation: Speculation, layers: Sequence[Slots], rng: Random) -> None:
        self._speculation = speculation
        self._target, *self._modules = layers
        self._rng = rng

    def run(self, held: Held, guessing: bool) -> None:
        """Write the rows from the frontier to the last computed token (rule C) and, if ``guessing``, hold new drafts;
        or neither, as a worker does that takes speculation for a waste just then.
        """
        held.drafts = []
        if self._modules and self._rng.random() < self._speculation.lag:
            return
        guesses = self._write_rows(held, guessing)
        most = self._speculation.max_drafts
        held.drafts = guesses[: self._rng.randint(0, most) if self._speculation.depth_varies else most]
        decided = len(held.tokens) - len(self._modules)
        held.num_final = max(held.num_final, min(held.num_computed, decided))

    def _write_rows(self, held: Held, guessing: bool) -> list[int]:
        """The guesses. Module m at position q takes token q + m + 1, at the end a guess of the module before it."""
        sequence, first, end = list(held.tokens), held.num_final, held.num_computed
        target = below = self._target.read(held.blocks, end)
        for module, slots in enumerate(self._modules):
            values = slots.read(held.blocks, first)
            for position in range(first, end):
                values.append(module_value(module, below[position], sequence[position + module + 1], values))
                slots.write(held.blocks, position, values[-1])
            below = values
            if guessing:
                sequence.append(self._guess(held, sequence, target, values[-1]))
        if guessing and len(self._modules) == 1:
            self._reuse(held, sequence, target, below)
        return sequence[len(held.tokens) :]

    def _reuse(self, held: Held, sequence: list[int], target: list[int], values: list[int]) -> None:
        """Further guesses of the one module, each from its own output and guess before; no slot keeps those rows."""
        while len(sequence) < len(held.tokens) + self._speculation.max_drafts:
            values.append(module_value(0, values[-1], sequence[-1], values))
            sequence.append(self._guess(held, sequence, target, values[-1]))

    def _guess(self, held: Held, sequence: Sequence[int], target: list[int], hidden: int) -> int:
        """What follows ``sequence``; ``target`` is extended to all of it."""
        for token in sequence[len(target) :]:
            target.append(key_value(target, token))
        num_emitted = len(sequence) - held.num_prompt
        banned = held.stopping.stop_token_ids if num_emitted < held.stopping.min_tokens else ()
        right = draw(target, held.sampling.seed, banned) or 0
        return right if hidden % 100 < self._speculation.right_percent else (right + 1) % VOCAB_SIZE
