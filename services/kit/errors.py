"""Errors that callers may see, one class per cause.

The class names its gRPC status as a word, so cores stay free of gRPC; `services.kit.rpc` turns it
into the wire code with `google.rpc` details. Any other exception is a bug: it is logged and shown
as INTERNAL.

    ServiceError
    ├── InvalidArgument       the request is wrong whatever the state
    ├── NotFound              what it names does not exist
    ├── AlreadyExists         what it would create exists otherwise
    ├── FailedPrecondition    the request is right, the state is not
    ├── PermissionDenied      a right that was not given
    ├── ResourceExhausted     a bound is reached; retry later
    ├── Unavailable           cannot be answered now; retry
    ├── DeadlineExceeded      the time to answer is over
    ├── Unimplemented         a call that this server, or this model, does not answer
    ├── Internal              a peer failed on a request that looked right
    └── Cancelled             the caller has gone
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Base class. The message is safe to show to the caller.

    Attributes:
        status: The gRPC status code's name.
        message: What is wrong and what is allowed.
        reason: A stable UPPER_SNAKE word for programs (google.rpc.ErrorInfo.reason).
        field: Path of the offending field (google.rpc.BadRequest), or "".
        retry_after_s: When to try again (google.rpc.RetryInfo), or None.
        trailers: What else the caller is told, as trailing metadata.
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


class InvalidArgument(ServiceError):
    """The request is wrong whatever the state."""

    status = "INVALID_ARGUMENT"


class NotFound(ServiceError):
    """What the request names does not exist."""

    status = "NOT_FOUND"


class AlreadyExists(ServiceError):
    """What the request would create exists, and differs."""

    status = "ALREADY_EXISTS"


class FailedPrecondition(ServiceError):
    """The request is right, the state is not."""

    status = "FAILED_PRECONDITION"


class PermissionDenied(ServiceError):
    """A right that was not given."""

    status = "PERMISSION_DENIED"


class ResourceExhausted(ServiceError):
    """A bound is reached; retry later."""

    status = "RESOURCE_EXHAUSTED"


class Unavailable(ServiceError):
    """Cannot be answered now; retry."""

    status = "UNAVAILABLE"


class DeadlineExceeded(ServiceError):
    """The time to answer is over."""

    status = "DEADLINE_EXCEEDED"


class Unimplemented(ServiceError):
    """A call that this server, or this model, does not answer."""

    status = "UNIMPLEMENTED"


class Internal(ServiceError):
    """A peer failed on a request that looked right: its bug, or its model's."""

    status = "INTERNAL"


class Cancelled(ServiceError):
    """The caller has gone."""

    status = "CANCELLED"


_BY_STATUS: dict[str, type[ServiceError]] = {
    cls.status: cls for cls in ServiceError.__subclasses__()
}


def from_status(status: str, message: str) -> ServiceError:
    """Return the error that a status word stands for, as when a peer reports it.

    Args:
        status: A gRPC status code's name, for example "NOT_FOUND".
        message: Its message.
    """
    return _BY_STATUS.get(status, ServiceError)(message)
