"""The MTP modules of a simulated worker: they write draft KV from the frontier on and guess what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.sim.exact import Exact
from tests.sim.model import VOCAB_SIZE, Model, join
from tests.sim.shape import Speculation
from tests.sim.slots import Layer
from worker_svc.requests import Held


@dataclass(slots=True, kw_only=True)
class State:
    """What a worker keeps of a request for its modules, and what the oracle knows of it.

    ``hidden`` are the target's outputs from position ``start`` on. ``inexact[group]`` rows at the front of a rebuilt
    group need not be exact. ``text`` is what the request should emit.
    """

    start: int
    hidden: list[int]
    inexact: dict[int, int]
    exact: Exact
    text: Sequence[int]


class Drafter:
    """A guess is right or wrong by the KV it is made from, so wrong KV changes acceptance."""

    def __init__(self, speculation: Speculation, model: Model, layers: Sequence[Layer], rng: Random) -> None:
        self._speculation = speculation
        self._model = model
        self._layers = layers
        self._rng = rng

    def run(self, held: Held, state: State, guessing: bool) -> None:
        """Write the rows from the frontier to the last computed token (rule C) and, if ``guessing``, hold new drafts;
        or neither, as a worker does that takes speculation for a waste just then.
        """
        held.drafts = []
        if self._passes_over(held):
            return
        guesses, outputs = self._write_rows(held, state, guessing)
        most = self._speculation.max_drafts
        held.drafts = guesses[: self._rng.randint(0, most) if self._speculation.depth_varies else most]
        num_final = max(held.num_final, min(held.num_computed, len(held.tokens) - self._speculation.num_modules))
        self._check(held, state, outputs, num_final)
        held.num_final = num_final

    def _passes_over(self, held: Held) -> bool:
        model, most = self._model, self._speculation.num_modules - 1 + self._speculation.max_lag
        bounded = any(model.windows[group] is not None for group in model.modules)
        if not model.modules or (bounded and held.num_computed - held.num_final > most):
            return False
        return self._rng.random() < self._speculation.lag

    def _write_rows(self, held: Held, state: State, guessing: bool) -> tuple[list[int], list[int]]:
        """The guesses, and the last module's outputs.

        Module m at position q takes token q + m + 1, at the end a guess of the module before it.
        """
        sequence, first, end = list(held.tokens), held.num_final, held.num_computed
        below = state.hidden[first - state.start : end - state.start]
        for lookahead, (layer, group) in enumerate(zip(self._layers, self._model.modules, strict=True), 1):
            inputs = [join(hidden, sequence[q + lookahead]) for q, hidden in enumerate(below, first)]
            below = layer.run(held.blocks[group], first, inputs)
            if guessing:
                sequence.append(self._guess(held, state, sequence, below[-1]))
        while guessing and self._layers and len(sequence) < len(held.tokens) + self._speculation.max_drafts:
            sequence.append(self._guess(held, state, sequence, join(below[-1], sequence[-1])))
        return sequence[len(held.tokens) :], below

    def _guess(self, held: Held, state: State, sequence: Sequence[int], hidden: int) -> int:
        """What follows ``sequence``, or something else."""
        num_emitted = len(sequence) - held.num_prompt
        right = state.text[num_emitted] if num_emitted < len(state.text) else 0
        return right if hidden % 100 < self._speculation.right_percent else (right + 1) % VOCAB_SIZE

    def _check(self, held: Held, state: State, outputs: Sequence[int], num_final: int) -> None:
        """Rows that the frontier passes are exact, in what they hold and in what they put out."""
        first, start, exact = held.num_final, held.num_final, state.exact
        if len(held.tokens) > len(exact.hidden):
            exact.extend(held.tokens)
        for layer, group in zip(self._layers, self._model.modules, strict=True):
            start = max(first, state.inexact.get(group, 0))
            written = layer.read(held.blocks[group], start, num_final) if start < num_final else []
            assert written == exact.kv[layer.number][start:num_final], f"draft KV of layer {layer.number} is not exact"
        assert outputs[start - first : num_final - first] == exact.drafted[start:num_final], "drafts are not exact"
