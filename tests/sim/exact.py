"""The KV that a sequence must have, from its tokens alone: the oracle of what a worker's slots hold."""

from collections.abc import Sequence

from tests.sim.model import key_value, module_value


class Exact:
    """``layers[0]`` is the target, ``layers[m + 1]`` module m; each as far as the tokens known so far decide it."""

    def __init__(self, num_modules: int) -> None:
        self.layers: list[list[int]] = [[] for _ in range(num_modules + 1)]

    def extend(self, tokens: Sequence[int]) -> None:
        """All known ``tokens``, those of earlier calls first."""
        target, *modules = self.layers
        for token in tokens[len(target) :]:
            target.append(key_value(target, token))
        below = target
        for module, values in enumerate(modules):
            for position in range(len(values), len(tokens) - module - 1):
                values.append(module_value(module, below[position], tokens[position + module + 1], values))
            below = values
