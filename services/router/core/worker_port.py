"""The port to the workers: the messages of a stream in both directions."""

from dataclasses import dataclass
from typing import Protocol

from services.kit.errors import ServiceError, from_status
from services.kit.request_cost import Cost
from services.router.core.model import Request


@dataclass(slots=True)
class Result:
    """A worker's result for one request.

    Attributes:
        number: Number of the request.
        status: gRPC status word; "" is OK.
        message: When not OK: the reason.
        retry_after_s: When not OK: when the caller may try again; None: not stated.
        reason, field: When not OK: as of `ServiceError`; "": not stated.
        response: When OK: serialized inference.ModelInferResponse.
        cost: Cost; None where the worker reported none.
        more: Further results of the same request follow.
    """

    number: int
    status: str = ""
    message: str = ""
    response: bytes = b""
    cost: Cost | None = None
    more: bool = False
    retry_after_s: float | None = None
    reason: str = ""
    field: str = ""

    def error(self) -> ServiceError:
        """Return the error of a result that is not OK."""
        error = from_status(self.status, self.message, self.reason, self.field)
        error.retry_after_s = self.retry_after_s
        return error


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker.

    Attributes:
        credits: Requests it may hold, >= 1: its batch size.
        metadata: Serialized inference.ModelMetadataResponse without the model's name.
        decoupled: The model answers in parts.
        in_batches: It runs requests together; it may hold as many again as it has credits, where no
            instance has a credit left.
        kv_tokens_per_credit: Tokens for which its model's KV cache has room, per credit; 0: not
            stated.
        max_batch: Requests that its model takes at a time; 0: any number, or not known.
        server: Address of a server that other workers may name as well; "": its own, or none.
        adapters: Adapters of its model that it has loaded.
    """

    credits: int
    metadata: bytes
    decoupled: bool = False
    in_batches: bool = False
    kv_tokens_per_credit: int = 0
    max_batch: int = 0
    server: str = ""
    adapters: tuple[str, ...] = ()


class WorkerPort(Protocol):
    """A stream to one worker, reopened when it breaks."""

    def send(self, request: Request) -> None:
        """Send a request as soon as possible."""
        ...

    def withdraw(self, number: int) -> None:
        """Withdraw a request whose caller has gone."""
        ...

    def close(self) -> None:
        """End the stream; the worker holds nothing."""
        ...
