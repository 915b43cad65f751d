"""Errors that callers may see, one class per cause.

The class names its gRPC status as a word, so cores stay free of gRPC; `services.kit.rpc` turns it
into the wire code with `google.rpc` details. Any other exception is a bug: it is logged and shown
as INTERNAL.
"""

from collections.abc import Iterator
from typing import ClassVar, Self


class ServiceError(Exception):
    """Base class. The message is safe to show to the caller.

    Attributes:
        status: The gRPC status code's name.
        message: What is wrong and what is allowed.
        reason: A stable UPPER_SNAKE word for programs (google.rpc.ErrorInfo.reason).
        field: Path of the offending field (google.rpc.BadRequest), or "".
        retry_after_s: When to try again (google.rpc.RetryInfo), or None.
        trailers: Further trailing metadata for the caller.
    """

    status: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        field: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.status
        self.field = field
        self.retry_after_s = retry_after_s
        self.trailers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def at(cls, field: str, problem: str, *, reason: str = "") -> Self:
        """Return the error with its field's path as a prefix of the message."""
        return cls(f"{field}: {problem}", field=field, reason=reason)

    def because(self, why: str) -> Self:
        """Return the same error with a reason appended to its message."""
        return type(self)(
            f"{self.message}{why}",
            reason=self.reason,
            field=self.field,
            retry_after_s=self.retry_after_s,
        )


class InvalidArgument(ServiceError):
    """The request is wrong whatever the state."""

    status = "INVALID_ARGUMENT"


class NotFound(ServiceError):
    """The object that the request names does not exist."""

    status = "NOT_FOUND"


class AlreadyExists(ServiceError):
    """The object that the request would create exists, and differs."""

    status = "ALREADY_EXISTS"


class FailedPrecondition(ServiceError):
    """The request is right, the state is not."""

    status = "FAILED_PRECONDITION"


class PermissionDenied(ServiceError):
    """The caller lacks a permission."""

    status = "PERMISSION_DENIED"


class Unauthenticated(ServiceError):
    """The caller shows no identity, or one that is not valid."""

    status = "UNAUTHENTICATED"


class ResourceExhausted(ServiceError):
    """A limit is reached; retry later."""

    status = "RESOURCE_EXHAUSTED"


class Unavailable(ServiceError):
    """The service cannot answer now; retry."""

    status = "UNAVAILABLE"


class DeadlineExceeded(ServiceError):
    """The deadline has passed."""

    status = "DEADLINE_EXCEEDED"


class Unimplemented(ServiceError):
    """This server or model does not support the call."""

    status = "UNIMPLEMENTED"


class Internal(ServiceError):
    """A peer failed on a valid request: a bug of the peer or its model."""

    status = "INTERNAL"


class Cancelled(ServiceError):
    """The caller has cancelled."""

    status = "CANCELLED"


MAX_RETRY_AFTER_S = 3600.0
"""Longest time to wait that another server is believed, s: a longer one is a mistake."""

_BY_STATUS: dict[str, type[ServiceError]] = {
    cls.status: cls for cls in ServiceError.__subclasses__()
}


def from_status(status: str, message: str, reason: str = "", field: str = "") -> ServiceError:
    """Return the error for a status word reported by a peer.

    Args:
        status: A gRPC status code's name, for example "NOT_FOUND".
        message: Message of the error.
        reason: Its reason; "": the status.
        field: Path of the offending field, or "".
    """
    return _BY_STATUS.get(status, ServiceError)(message, reason=reason, field=field)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that a tree of exception groups holds; an error alone is its own."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error
