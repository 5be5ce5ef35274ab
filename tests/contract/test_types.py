"""The shape of the data types."""

import dataclasses
import inspect

import pytest

from augury import types

CLASSES = [cls for _, cls in inspect.getmembers(types, dataclasses.is_dataclass)]


def test_there_are_types() -> None:
    assert len(CLASSES) >= 15


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_types_are_frozen_slotted_and_keyword_only(cls: type) -> None:
    params = inspect.getattr_static(cls, "__dataclass_params__")
    assert params.frozen
    assert "__slots__" in vars(cls)
    assert all(field.kw_only for field in dataclasses.fields(cls))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_types_hold_nothing_that_can_be_changed(cls: type) -> None:
    for field in dataclasses.fields(cls):
        assert not str(field.type).startswith(("list", "dict", "set")), field.name
