"""Conversion between ServiceError and status codes with google.rpc details."""

from contextlib import suppress

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from services.kit.errors import MAX_RETRY_AFTER_S, ServiceError, from_status

DOMAIN = "cinquefoil"
DETAILS_KEY = "grpc-status-details-bin"


def _details(error: ServiceError) -> list[Message]:
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return details


Trailers = tuple[tuple[str, str | bytes], ...]


def to_wire(error: ServiceError) -> tuple[grpc.StatusCode, str, Trailers]:
    """Return code, message and trailing metadata for `context.abort`.

    The code and message inside the details equal the call's: readers such as
    `grpc_status.rpc_status.from_call` refuse them otherwise.
    """
    packed = []
    for detail in _details(error):
        entry = any_pb2.Any()
        entry.Pack(detail)
        packed.append(entry)
    status = status_pb2.Status(
        code=code_pb2.Code.Value(error.status), message=error.message, details=packed
    )
    return (
        grpc.StatusCode[error.status],
        error.message,
        (*error.trailers, (DETAILS_KEY, status.SerializeToString())),
    )


def from_wire(error: grpc.aio.AioRpcError) -> ServiceError:
    """Return the error that a failed call raised, with its reason and when to try again.

    If no service of ours answered, the reason is "NO_ANSWER".
    """
    found = from_status(error.code().name, error.details() or "")
    found.reason = "NO_ANSWER"
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            _read_details(found, value)
    return found


def _read_details(error: ServiceError, data: bytes) -> None:
    """Take what a serialized google.rpc.Status says; of another server it may be damaged."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    with suppress(DecodeError):
        for detail in status_pb2.Status.FromString(data).details:
            if detail.Unpack(info):
                error.reason = info.reason
            elif detail.Unpack(retry) and (wait_s := retry.retry_delay.ToNanoseconds() / 1e9) >= 0:
                error.retry_after_s = min(wait_s, MAX_RETRY_AFTER_S)
