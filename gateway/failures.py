"""Errors as clients see them: always {"error": {message, type, param, code}}, short, without internals."""

from collections.abc import Mapping

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from augury import limits
from augury.errors import TABLE, AuguryError, DeadlineError, InternalError, InvalidRequestError

_RETRY_AFTER_S = 1
_HTTP_CODES = {401: "invalid_api_key"}
"""OpenAI's codes of failures that only HTTP knows."""

_CLIENT_GONE = 499
"""nginx's status for a client that left; nobody reads it but the metrics."""


def error_body(error: AuguryError) -> bytes:
    """The JSON body that tells ``error``."""
    param = error.param if isinstance(error, InvalidRequestError) else None
    return _body(str(error), TABLE[error.code].type, param, error.code)


def install(app: FastAPI) -> None:
    """Answer every failure of ``app`` with an error body."""
    app.add_exception_handler(AuguryError, _on_domain_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, _on_fault)


async def _on_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AuguryError)
    status = TABLE[error.code].http
    headers = {"retry-after": str(_RETRY_AFTER_S)} if status in (429, 503) else {}
    if isinstance(error, DeadlineError):
        headers["x-should-retry"] = "false"
    return _response(status, error_body(error), headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """An unknown route, a method that a route does not have, or no valid key."""
    assert isinstance(error, HTTPException)
    body = _body(error.detail, TABLE[InvalidRequestError.code].type, None, _HTTP_CODES.get(error.status_code))
    return _response(error.status_code, body, error.headers or {})


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


async def _on_fault(request: Request, error: Exception) -> Response:
    return _response(500, error_body(InternalError("internal error")), {})


def _body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    if len(message) > limits.MAX_ERROR_CHARS:
        message = message[: limits.MAX_ERROR_CHARS - 1] + "…"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _response(status: int, body: bytes, headers: Mapping[str, str]) -> Response:
    return Response(body, status, headers, media_type="application/json")
