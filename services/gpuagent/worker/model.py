"""Who computes: the border between the worker's core and what runs the network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Protocol, TypeVar

from services.kit.errors import ServiceError

Answers = Callable[[], Sequence["bytes | ServiceError"]]
"""Gives each request's serialized ModelInferResponse, or what was wrong with it.

A call, because writing answers is no time of the GPU.
"""


class Request(Protocol):
    """A request that a model has read."""

    @property
    def id(self) -> str:
        """The client's name for it."""
        ...

    @property
    def items(self) -> int:
        """Items it brings, >= 1."""
        ...

    @property
    def kind(self) -> Hashable:
        """Requests of equal kind may share a batch; None: it runs alone."""
        ...


class ModelFailed(ServiceError):
    """The model could not answer a request that looked right."""

    status: ClassVar[str] = "INTERNAL"


R = TypeVar("R", bound=Request)


class Model(Protocol[R]):
    """A loaded model."""

    @property
    def metadata(self) -> bytes:
        """A serialized ModelMetadataResponse without the model's name."""
        ...

    def read(self, data: bytes, deadline_s: float) -> R:
        """Read a serialized ModelInferRequest.

        Args:
            data: The request.
            deadline_s: When nobody wants its answer any more, on the worker's clock.

        Raises:
            ServiceError: What is wrong with it.
        """
        ...

    async def compute(self, requests: Sequence[R]) -> Answers:
        """Run a batch.

        Raises:
            Exception: It failed as a whole; each request is then run alone.
        """
        ...

    async def failure(self) -> str:
        """Wait until the model cannot go on; return why."""
        ...
