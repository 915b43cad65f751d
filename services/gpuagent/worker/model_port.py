"""Who computes: the border between the worker's core and what runs the network."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from services.gpuagent.worker.core.text_tokens import TextTokens
from services.gpuagent.worker.work_messages import Body
from services.kit.errors import ServiceError


class Text(NamedTuple):
    """The end of an answer that was a text. Attributes: response (serialized), tokens."""

    response: bytes
    tokens: TextTokens


Answers = Callable[[], Sequence["bytes | Text | ServiceError"]]
"""Gives each request's serialized ModelInferResponse, or what was wrong with it.

A call, because writing answers is no time of the GPU.
"""


SendPart = Callable[[int, bytes], Awaitable[bool]]
"""Hands on a part of an answer, not its last.

Takes the request's place in the batch and a serialized ModelInferResponse. Waits until there is
room; False: the rest of this answer is not wanted.
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
R_co = TypeVar("R_co", bound=Request, covariant=True)


class Reader(Protocol[R_co]):
    """A loaded model before it computes: what it is, and what it makes of a request's bytes."""

    @property
    def metadata(self) -> bytes:
        """A serialized ModelMetadataResponse without the model's name."""
        ...

    @property
    def decoupled(self) -> bool:
        """Whether it answers in parts."""
        ...

    @property
    def execution_provider(self) -> str:
        """ONNX Runtime's execution provider that computes; "": another runtime does."""
        ...

    @property
    def max_batch(self) -> int:
        """Requests of one batch; 0: any number."""
        ...

    def read(self, data: Body, deadline_s: float) -> R_co:
        """Read a serialized ModelInferRequest.

        Args:
            data: The request.
            deadline_s: When its answer is of no use any more, on the worker's clock.

        Raises:
            ServiceError: What is wrong with it.
        """
        ...

    async def failure(self) -> str:
        """Wait until the model cannot go on; return why."""
        ...


class Model(Reader[R], Protocol[R]):
    """A loaded model that answers a batch at once."""

    async def compute(self, requests: Sequence[R], send: SendPart) -> Answers:
        """Run a batch.

        Args:
            requests: The batch.
            send: For a decoupled model: parts of answers before the last, as they are ready. The
                last is returned; it may be b"" where all was said.

        Raises:
            Exception: It failed as a whole; each request is then run alone. Not after parts.
        """
        ...
