"""What the engine and its streams to workers say to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from services.kit.request_cost import Cost, Usage
from services.router.core.model import Instance, Request

__all__ = ["Connect", "Cost", "Hello", "Link", "Listener", "Result", "Usage"]


@dataclass(slots=True)
class Result:
    """What a worker says about one request.

    Attributes:
        number: The request's.
        status: gRPC status word; "" is OK.
        message: When not OK: why.
        response: When OK: serialized inference.ModelInferResponse.
        cost: What it took; None where the worker did not say.
        more: Further results of the same request follow.
    """

    number: int
    status: str = ""
    message: str = ""
    response: bytes = b""
    cost: Cost | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker says first.

    Attributes:
        credits: Requests it may hold, >= 1: its batch size.
        metadata: Serialized inference.ModelMetadataResponse without the model's name.
        decoupled: The model answers in parts.
    """

    credits: int
    metadata: bytes
    decoupled: bool = False


class WorkerPort(Protocol):
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


class WorkerListener(Protocol):
    """What links tell."""

    def hello(self, instance: Instance, hello: Hello) -> None:
        """The worker takes requests."""
        ...

    def credits(self, instance: Instance, credits_: int) -> None:
        """The worker may be given so many requests from now on, >= 1."""
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


Connect = Callable[[Instance, WorkerListener], WorkerPort]
