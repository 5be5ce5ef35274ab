"""Plants a bug: in a function of the code under test a text becomes another, for as long as it takes to find it."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import dedent
from types import FunctionType, ModuleType


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function or property ``owner.name`` the text ``old``, which occurs once, becomes ``new``."""

    owner: type | ModuleType
    name: str
    old: str
    new: str


Mutants = dict[str, tuple[Edit, ...]]
"""Edits by the meaning of the bug."""


@contextmanager
def planted(edits: tuple[Edit, ...]) -> Iterator[None]:
    """The code with ``edits`` made, each in another function. Raises ValueError for text that does not occur once."""
    originals = [(edit, vars(edit.owner)[edit.name]) for edit in edits]
    edited = [_edited(edit, original) for edit, original in originals]
    try:
        for edit, function in zip(edits, edited, strict=True):
            setattr(edit.owner, edit.name, function)
        yield
    finally:
        for edit, original in originals:
            setattr(edit.owner, edit.name, original)


def _edited(edit: Edit, original: object) -> object:
    function = original.fget if isinstance(original, property) else original
    assert isinstance(function, FunctionType)
    source = dedent(inspect.getsource(function))
    if source.count(edit.old) != 1:
        raise ValueError(f"{edit.name} does not hold {edit.old!r} once; its mutant needs another text")
    namespace: dict[str, object] = {}
    exec(source.replace(edit.old, edit.new), function.__globals__, namespace)
    return namespace[edit.name]
