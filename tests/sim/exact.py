"""The KV that a sequence must have, from its tokens alone: the oracle of what a worker's slots hold."""

from collections.abc import Sequence

from tests.sim.model import Model, embed, join, put_out, stored


class Exact:
    """``kv[layer]`` as far as the tokens known so far decide it; ``hidden`` is the target's output, ``drafted`` the
    last module's.
    """

    def __init__(self, model: Model) -> None:
        self.kv: list[list[int]] = [[] for _ in model.layers]
        self.hidden: list[int] = []
        self._outputs: list[list[int]] = [self.hidden, *([] for _ in model.modules)]
        self._target = [(layer, model.windows[group]) for layer, group in enumerate(model.target)]
        self._modules = [(len(model.target) + m, model.windows[group]) for m, group in enumerate(model.modules)]

    @property
    def drafted(self) -> list[int]:
        return self._outputs[-1]

    def extend(self, tokens: Sequence[int]) -> None:
        """All known ``tokens``, those of earlier calls first."""
        self.extend_target(tokens)
        for lookahead, (layer, window) in enumerate(self._modules, 1):
            below, outputs = self._outputs[lookahead - 1], self._outputs[lookahead]
            for position in range(len(outputs), len(tokens) - lookahead):
                outputs.append(self._append(layer, window, join(below[position], tokens[position + lookahead])))

    def extend_target(self, tokens: Sequence[int]) -> None:
        """The same without the modules."""
        for token in tokens[len(self.hidden) :]:
            below = embed(token)
            for layer, window in self._target:
                below = self._append(layer, window, below)
            self.hidden.append(below)

    def _append(self, layer: int, window: int | None, below: int) -> int:
        """The layer's output at the next position."""
        kv = self.kv[layer]
        kv.append(stored(layer, below))
        return put_out(below, kv if window is None else kv[-window:])
