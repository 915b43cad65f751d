"""Errors of services as HTTP answers."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from services.kit.errors import ServiceError

ErrorForm = Callable[[ServiceError], Mapping[str, object]]
"""Returns the body of an error, in an API's own form."""

STATUSES: Final = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP status by status word, as in google.rpc.Code; any other: 500."""

TOO_LARGE: Final = "REQUEST_TOO_LARGE"
"""Reason of the error of a body beyond its limit: status 413."""


UNKNOWN_ENCODING: Final = "UNKNOWN_ENCODING"
"""Reason of the error of a body in a compression that is not understood: status 415."""

UNKNOWN_MEDIA_TYPE: Final = "UNKNOWN_MEDIA_TYPE"
"""Reason of the error of a body of a type that is not understood: status 415."""

NO_SUCH_METHOD: Final = "NO_SUCH_METHOD"
"""Reason of the error of a path that has no such HTTP method: status 405."""

_BY_REASON: Final = {
    TOO_LARGE: 413,
    UNKNOWN_ENCODING: 415,
    UNKNOWN_MEDIA_TYPE: 415,
    NO_SUCH_METHOD: 405,
}


def refusal(error: ServiceError, form: ErrorForm) -> web.Response:
    """Return an error as an answer: its status, its body, and when to try again."""
    status = _BY_REASON.get(error.reason) or STATUSES.get(error.status, 500)
    headers = {"cinquefoil-status": error.status, "cinquefoil-reason": error.reason}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1e3))
    if error.status == "UNAUTHENTICATED":
        headers["WWW-Authenticate"] = "Bearer"
    headers.update(error.trailers)
    return web.json_response(form(error), status=status, headers=headers)
