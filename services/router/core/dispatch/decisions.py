"""Decisions of a dispatcher, as data; the router's runtime or the simulator executes them."""

from dataclasses import dataclass

from services.kit.errors import ServiceError
from services.router.core.model import Instance
from services.router.core.pending_request import PendingRequest


@dataclass(frozen=True, slots=True)
class Send:
    """Give the request to the instance."""

    instance: Instance
    pending: PendingRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """The result just reported is the answer to the request."""

    instance: Instance
    pending: PendingRequest


@dataclass(frozen=True, slots=True)
class Fail:
    """Report the error to the request's caller."""

    pending: PendingRequest
    error: ServiceError


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Withdraw the request, whose caller has gone, from the instance; its result still comes."""

    instance: Instance
    pending: PendingRequest


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a stream to the instance."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Release:
    """Close the stream to the instance: it holds nothing and is in no routing table."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Reconsider:
    """Call the model's dispatcher again at a time, for requests that a policy holds back."""

    model: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the request again at the first stage: the pipeline it waits in is gone."""

    pending: PendingRequest


def fail(pending: PendingRequest, error: ServiceError) -> Fail:
    """End a request with an error."""
    pending.end()
    return Fail(pending, error)


Decision = Send | Reply | Fail | Withdraw | Dial | Release | Reconsider | Restart
