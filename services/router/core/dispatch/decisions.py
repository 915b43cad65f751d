"""What a dispatcher decides, as data; the engine or the simulator carries it out."""

from __future__ import annotations

from dataclasses import dataclass

from services.kit.errors import ServiceError
from services.router.core.model import Instance, Request


@dataclass(frozen=True, slots=True)
class Send:
    """Give the request to the instance."""

    instance: Instance
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """The result just reported is the answer to the request."""

    instance: Instance
    request: Request


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell the request's caller why there is no answer."""

    request: Request
    error: ServiceError


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Tell the instance that the request's caller has gone; its result is still awaited."""

    instance: Instance
    request: Request


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
    """Have the model's dispatcher look at what waits by choice, at a time."""

    model: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Begin the request anew: where it waits, its pipeline is gone."""

    request: Request


Decision = Send | Reply | Fail | Withdraw | Dial | Release | Reconsider | Restart
