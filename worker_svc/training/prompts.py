"""The prompts that the base answers: templates filled from lists, both in one ``prompts_….toml`` for each part."""

import random
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from itertools import cycle

_SLOT = re.compile(r"\{(\w+)\}")
_NUMBERS = {"a": (12, 99), "b": (5, 60), "c": (2, 9), "n": (11, 40), "k": (3, 9)}
"""Slots that are whole numbers, with their least and greatest value."""


_TURN = "\n---\n"
_ROLES = "user", "assistant"


class Part(Enum):
    """TRAIN, VARIED and DIVERSE are for training. EVALUATION has no template and no list entry in common with them."""

    TRAIN = "train"
    VARIED = "varied"
    DIVERSE = "diverse"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A part's file. ``entries`` holds what each slot may be filled with."""

    systems: tuple[str, ...]
    templates: tuple[str, ...]
    entries: dict[str, tuple[str, ...]]


@cache
def read(part: Part) -> Prompts:
    """The part as written."""
    lists = tomllib.loads(files(__package__).joinpath(f"prompts_{part.value}.toml").read_text(encoding="utf-8"))
    return Prompts(
        systems=tuple(lists.pop("systems")),
        templates=tuple(lists.pop("templates")),
        entries={slot: tuple(entries) for slot, entries in lists.items()},
    )


def chat(part: Part, index: int) -> str:
    """The ``index``-th prompt of a part, as text in ChatML up to where the answer begins.

    Each round of ``len(templates)`` prompts uses every template once, in an order of its own.
    """
    prompts = read(part)
    turn, place = divmod(index, len(prompts.templates))
    order = random.Random(f"{part.value} {turn}").sample(prompts.templates, len(prompts.templates))
    rng = random.Random(f"{part.value} {turn} {place}")
    return chatml(rng.choice(prompts.systems), fill(order[place], prompts, rng).split(_TURN))


def fill(template: str, prompts: Prompts, rng: random.Random) -> str:
    """The template with an entry in every slot."""

    def entry(slot: re.Match[str]) -> str:
        if slot[1] in _NUMBERS:
            return str(rng.randint(*_NUMBERS[slot[1]]))
        return rng.choice(prompts.entries[slot[1]])

    return _SLOT.sub(entry, template)


def chatml(system: str, turns: Sequence[str]) -> str:
    """What SmolLM2's chat template writes for a system prompt, turns of user and assistant, and an open reply."""
    messages = [("system", system), *zip(cycle(_ROLES), turns, strict=False)]
    said = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return f"{said}<|im_start|>assistant\n"
