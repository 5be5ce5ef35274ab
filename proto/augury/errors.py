"""Domain errors, and the one table that maps them to gRPC and HTTP."""

from typing import ClassVar, NamedTuple


class Mapping(NamedTuple):
    """How an error code looks outside: a grpc.StatusCode name, an HTTP status, OpenAI's error type."""

    grpc: str
    http: int
    type: str


TABLE: dict[str, Mapping] = {
    "invalid_request": Mapping("INVALID_ARGUMENT", 400, "invalid_request_error"),
    "context_length_exceeded": Mapping("OUT_OF_RANGE", 400, "invalid_request_error"),
    "model_not_found": Mapping("NOT_FOUND", 404, "invalid_request_error"),
    "rate_limit_exceeded": Mapping("RESOURCE_EXHAUSTED", 429, "rate_limit_error"),
    "server_overloaded": Mapping("RESOURCE_EXHAUSTED", 503, "server_error"),
    "no_worker": Mapping("UNAVAILABLE", 503, "server_error"),
    "deadline_exceeded": Mapping("DEADLINE_EXCEEDED", 504, "server_error"),
    "fenced": Mapping("ABORTED", 500, "server_error"),
    "unknown_pool": Mapping("FAILED_PRECONDITION", 500, "server_error"),
    "not_finite": Mapping("DATA_LOSS", 500, "server_error"),
    "internal": Mapping("INTERNAL", 500, "server_error"),
}


class AuguryError(Exception):
    """An operation failed in a way its caller is told of. ``code`` is a key of TABLE."""

    code: ClassVar[str] = "internal"


class InvalidRequestError(AuguryError):
    """The request is wrong in itself; ``param`` names the field where one is at fault."""

    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """Prompt and wanted tokens can never fit the context window or the worker's pool."""

    code = "context_length_exceeded"


class ModelNotFoundError(InvalidRequestError):
    """No such model is served here."""

    code = "model_not_found"


class OverloadedError(AuguryError):
    """A bounded queue is full; trying again later may work."""

    code = "server_overloaded"


class RateLimitError(OverloadedError):
    """One client has too many requests open, while there are places left for others."""

    code = "rate_limit_exceeded"


class NoWorkerError(AuguryError):
    """No worker can take the request."""

    code = "no_worker"


class DeadlineError(AuguryError):
    """The time that the client gave its request is over."""

    code = "deadline_exceeded"


class FencedError(AuguryError):
    """A message of an old epoch, or out of sequence."""

    code = "fenced"


class UnknownPoolError(AuguryError):
    """The KV service does not know this pool (it was restarted); open it again."""

    code = "unknown_pool"


class NotFiniteError(AuguryError):
    """The model's output for a request is not finite, so no token can be drawn."""

    code = "not_finite"


class InternalError(AuguryError):
    """A fault of ours."""


def _family(cls: type[AuguryError]) -> list[type[AuguryError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _family(child))]


_CLASSES = {cls.code: cls for cls in reversed(_family(AuguryError)) if cls is not AuguryError}


def from_code(code: str, message: str) -> AuguryError:
    """The error that another process reported as (code, message); an unknown code becomes InternalError."""
    return _CLASSES.get(code, InternalError)(message)
