"""The port between the worker's core and the runtime of the network."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from services.gpuagent.worker.core.tokens import TextTokens
from services.gpuagent.worker.work_messages import Body
from services.kit.errors import ServiceError


class Text(NamedTuple):
    """The end of an answer that was a text. Attributes: response (serialized), tokens."""

    response: bytes
    tokens: TextTokens


Answers = Iterable["bytes | Text | ServiceError"]
"""Each request's serialized ModelInferResponse, or its error.

Answers are written as they are taken: the time for that is not the GPU's.
"""


SendPart = Callable[[int, bytes], Awaitable[bool]]
"""Hands on a part of an answer, not its last.

Takes the request's place in the batch and a serialized ModelInferResponse. Waits until there is
room; False: the rest of this answer is not wanted.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A request that a model has read.

    Attributes:
        id: The client's name for it.
        items: Items it brings, >= 1.
        kind: Requests of equal kind may share a batch; None: it runs alone.
    """

    id: str
    items: int = 1
    kind: Hashable = None


class ModelFailed(ServiceError):
    """The model could not answer a request that looked right."""

    status: ClassVar[str] = "INTERNAL"


R = TypeVar("R", bound=Request)


class Reader(ABC, Generic[R]):
    """A loaded model before it computes: its metadata, and its reading of requests.

    Attributes:
        metadata: A serialized ModelMetadataResponse without the model's name.
        decoupled: It answers in parts.
        execution_provider: ONNX Runtime's that computes; "": another runtime does, or not known.
        max_batch: Requests of one batch; 0: any number, or not known.
        alone: Why that is one; "": it is not.
        server: Address of the model's server, where it is not the worker's own; "": it is, or none.
        adapters: Adapters of the model that are loaded.
        kv_tokens: Tokens for which a language model's KV cache has room; 0: as many as its slots
            can need, or unknown.
    """

    metadata: bytes = b""
    decoupled: bool = False
    execution_provider: str = ""
    max_batch: int = 0
    alone: str = ""
    server: str = ""
    adapters: tuple[str, ...] = ()
    kv_tokens: int = 0

    @abstractmethod
    def read(self, data: Body, deadline_s: float) -> R:
        """Read a serialized ModelInferRequest.

        Args:
            data: The request.
            deadline_s: Time after which its answer is useless, on the worker's clock.

        Raises:
            ServiceError: The request is invalid.
        """

    async def room(self) -> None:
        """Wait until the model can begin one more batch at once, as here it always can."""

    async def failure(self) -> str:
        """Wait until the model cannot go on, which here never is; return why."""
        await asyncio.Event().wait()
        return ""


class Model(Reader[R]):
    """A loaded model that answers a batch at once."""

    @abstractmethod
    async def compute(self, requests: Sequence[R], send: SendPart) -> Answers:
        """Run a batch.

        Args:
            requests: The batch.
            send: For a decoupled model: parts of answers before the last, as they are ready. The
                last is returned; it may be b"" where all was said.

        Raises:
            Exception: It failed as a whole; each request is then run alone. Not after parts.
        """
