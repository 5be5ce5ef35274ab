"""One table for all errors."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury import errors
from augury.errors import TABLE, AuguryError, InternalError, from_code


def leaves(cls: type[AuguryError]) -> list[type[AuguryError]]:
    return [leaf for child in cls.__subclasses__() for leaf in (child, *leaves(child))]


def test_codes_of_classes_and_table_are_the_same() -> None:
    codes = [cls.code for cls in leaves(AuguryError)]
    assert sorted(codes) == sorted(TABLE)
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("code", TABLE)
def test_an_error_keeps_class_and_message_across_a_wire(code: str) -> None:
    error = from_code(code, "what happened")
    assert (error.code, str(error)) == (code, "what happened")
    assert type(error).__name__ in vars(errors)


@given(code=st.text().filter(lambda code: code not in TABLE))
def test_an_unknown_code_is_a_fault_of_ours(code: str) -> None:
    error = from_code(code, "odd")
    assert type(error) is InternalError
    assert str(error) == "odd"


@pytest.mark.parametrize("code", TABLE)
def test_every_row_names_a_grpc_status_and_a_fitting_http_status(code: str) -> None:
    row = TABLE[code]
    assert grpc.StatusCode[row.grpc] is not grpc.StatusCode.OK
    assert (row.http < 500) == (row.type in ("invalid_request_error", "rate_limit_error"))
    assert 400 <= row.http < 600
