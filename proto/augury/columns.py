"""Columns of per-iteration messages: struct-of-arrays, each a ``bytes`` field of little-endian integers or of keys."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, TypeVar

import numpy as np

from augury.errors import InvalidRequestError
from augury.keys import KEY_BYTES

T = TypeVar("T")


def ints(values: Sequence[int]) -> bytes:
    """An int32 column. Raises OverflowError where a value does not fit."""
    return np.array(values, dtype="<i4").tobytes()


def longs(values: Sequence[int]) -> bytes:
    """An int64 column."""
    return np.array(values, dtype="<i8").tobytes()


def to_ints(column: bytes) -> list[int]:
    """The values of an int32 column. Raises InvalidRequestError where the length is no whole number of them."""
    return _column(column, "<i4", 4)


def to_longs(column: bytes) -> list[int]:
    """The values of an int64 column, as to_ints."""
    return _column(column, "<i8", 8)


def _column(column: bytes, dtype: str, width: int) -> list[int]:
    if len(column) % width:
        raise InvalidRequestError(f"a column of {len(column)} bytes does not hold {width}-byte integers")
    values: list[int] = np.frombuffer(column, dtype=dtype).tolist()
    return values


def to_keys(column: bytes) -> list[bytes]:
    """The keys of a column. Raises InvalidRequestError where the length is no whole number of them."""
    if len(column) % KEY_BYTES:
        raise InvalidRequestError(f"a column of {len(column)} bytes does not hold {KEY_BYTES}-byte keys")
    return [column[i : i + KEY_BYTES] for i in range(0, len(column), KEY_BYTES)]


def flat(parts: Iterable[Iterable[int]]) -> list[int]:
    """The parts of a ragged column, one after another."""
    return list(chain.from_iterable(parts))


def split(values: Sequence[T], counts: Sequence[int]) -> list[tuple[T, ...]]:
    """The parts of a ragged column. Raises InvalidRequestError where ``counts`` do not add up to it."""
    if min(counts, default=0) < 0 or sum(counts) != len(values):
        raise InvalidRequestError(f"counts that sum to {sum(counts)} for a column of {len(values)}")
    return [tuple(values[a:b]) for a, b in pairwise(accumulate(counts, initial=0))]


def grouped(values: Sequence[T], num_rows: int) -> list[tuple[T, ...]]:
    """A column of ``num_rows * groups`` values by row; an empty one gives empty rows.

    Raises InvalidRequestError where the length is no multiple.
    """
    width, rest = divmod(len(values), num_rows) if num_rows else (0, len(values))
    if rest:
        raise InvalidRequestError(f"a column of {len(values)} values for {num_rows} rows")
    return [tuple(values[row * width : (row + 1) * width]) for row in range(num_rows)]


def ragged(rows: Sequence[Sequence[int]]) -> list[int]:
    """``rows``, of one length or empty, as a column of so many values each: an empty row is zeros."""
    width = max(map(len, rows), default=0)
    return flat(row or (0,) * width for row in rows)


def ragged_counts(rows: Sequence[Sequence[Sequence[object]]]) -> list[int]:
    """The lengths of each row's parts, one for each group, as ``ragged`` gives them."""
    width = max(map(len, rows), default=0)
    nothing = (0,) * width
    return flat(list(map(len, row)) if row else nothing for row in rows)


def same_length(*columns: Sequence[Any]) -> None:
    """Raise InvalidRequestError unless the columns of one group have one length."""
    if len({len(column) for column in columns}) > 1:
        raise InvalidRequestError(f"columns of one group differ in length: {[len(column) for column in columns]}")
