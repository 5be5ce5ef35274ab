"""The body of a request, read with a bound."""

from starlette.requests import Request

from augury import limits
from augury.errors import InvalidRequestError


async def read_body(request: Request) -> bytes:
    """The whole body. Raises InvalidRequestError beyond limits.MAX_BODY_BYTES, ClientDisconnect."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limits.MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limits.MAX_BODY_BYTES:
            raise _too_large()
    return bytes(body)


def _too_large() -> InvalidRequestError:
    return InvalidRequestError(f"the body is larger than {limits.MAX_BODY_BYTES} bytes")
