"""What a worker's last result for a request means to the request's caller."""

from __future__ import annotations

from typing import NamedTuple

from services.kit.errors import ServiceError, from_status
from services.router.core.accounting.account import Account
from services.router.core.model import Instance, Request
from services.router.core.single_response import SingleResponse
from services.router.core.worker_port import Result


class Outcome(NamedTuple):
    """A worker's result for a request."""

    instance: Instance
    result: Result


def outcome(
    account: Account, request: Request, instance: Instance, result: Result
) -> Outcome | ServiceError:
    """Return what a request's last result makes of it; an error tells what was spent on it."""
    if result.status:
        error = from_status(result.status, result.message)
    elif request.parts is None and result.response:
        return Outcome(instance, result)
    else:
        parts = request.parts or SingleResponse(request.model)
        try:
            result.response = parts.last(result.response)
        except ServiceError as refusal:
            error = refusal
        else:
            return Outcome(instance, result)
    error.trailers = account.spent(instance, result)
    return error
