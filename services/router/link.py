"""What the engine and its streams to workers say to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from services.router.domain import Instance, Request


@dataclass(slots=True)
class Cost:
    """What a request took in its worker.

    Attributes:
        energy_j: Active energy, its share of its batch's.
        idle_energy_j: Idle energy since the last batch, its share.
        method: How energy_j was obtained.
        queue_s: Waiting in the worker.
        compute_s: Its batch executing.
        batch_size: Items in its batch, >= 1.
    """

    energy_j: float
    idle_energy_j: float
    method: str
    queue_s: float
    compute_s: float
    batch_size: int


@dataclass(slots=True)
class Result:
    """What a worker says about one request.

    Attributes:
        number: The request's.
        status: gRPC status word; "" is OK.
        message: When not OK: why.
        response: When OK: serialized inference.ModelInferResponse.
        cost: When OK: what it took; None where the worker did not say.
    """

    number: int
    status: str = ""
    message: str = ""
    response: bytes = b""
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker says first.

    Attributes:
        credits: Requests it may hold, >= 1: its batch size.
        metadata: Serialized inference.ModelMetadataResponse without the model's name.
    """

    credits: int
    metadata: bytes


class Link(Protocol):
    """A stream to one worker, that reopens itself."""

    def send(self, request: Request) -> None:
        """Send a request as soon as possible."""
        ...

    def withdraw(self, number: int) -> None:
        """Tell the worker that a request's caller has gone."""
        ...

    def close(self) -> None:
        """End it; the worker holds nothing."""
        ...


class Listener(Protocol):
    """What links tell."""

    def hello(self, instance: Instance, hello: Hello) -> None:
        """The worker takes requests."""
        ...

    def results(self, instance: Instance, results: Iterable[Result]) -> None:
        """The worker is done with requests."""
        ...

    def draining(self, instance: Instance) -> None:
        """The worker takes no more requests."""
        ...

    def broken(self, instance: Instance) -> None:
        """The stream ended, or could not be opened."""
        ...


Connect = Callable[[Instance, Listener], Link]
