"""What a worker's last result for a request means to the request's caller."""

from typing import NamedTuple

from services.kit.errors import ServiceError, from_status
from services.router.core.accounting.account import Account
from services.router.core.model import Instance
from services.router.core.pending_request import PendingRequest
from services.router.core.single_response import SingleResponse
from services.router.core.worker_port import Result


class Outcome(NamedTuple):
    """The answer to a request."""

    instance: Instance
    result: Result


Ended = Outcome | ServiceError
"""How a request ended."""


def outcome(account: Account, pending: PendingRequest, instance: Instance, result: Result) -> Ended:
    """Return what the caller is given for a request's last result; an error carries its cost."""
    receiver = pending.receiver
    if result.status:
        error = from_status(result.status, result.message)
    elif receiver is None and result.response:
        return Outcome(instance, result)
    else:
        receiver = receiver or SingleResponse(pending.request.model)
        try:
            result.response = receiver.complete(result.response)
        except ServiceError as refusal:
            error = refusal
        else:
            return Outcome(instance, result)
    error.trailers = account.count_unclaimed(instance, result)
    return error
