"""ModelStreamInfer: many requests on one stream, answered in Triton's format.

Requests run at the same time; each is a task. One writer sends what the `ResponseSequencer`
releases, as fast as the client reads; a request gives up its slot on the stream when its last
response has left.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from inference import grpc_service_pb2 as pb
from services.kit.errors import ResourceExhausted, ServiceError, leaves
from services.kit.telemetry import tracing
from services.router.core.accounting.receipts import variant_parameters
from services.router.core.model import Instance
from services.router.core.wire import Head, bool_parameter, enclosed, string_parameter
from services.router.frontend.response_sequencer import ResponseSequencer, StreamedRequest
from services.router.runtime.engine import Engine, shutting_down

_MAX_UNREAD_BYTES: Final = 16 * 2**20
"""Bytes of responses that may wait for a client to read them, per stream."""

_FAILS_FAST: Final = ("triton_grpc_error", "true")
"""Metadata of a call that its first error ends."""

_INFER_RESPONSE: Final = 2
_FINAL: Final = bool_parameter("triton_final_response", value=True)
_NOT_FINAL: Final = bool_parameter("triton_final_response", value=False)
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"

Read = Callable[[bytes], Head]
"""Reads and checks a request's head; raises ServiceError."""


@dataclass(eq=False)
class InferStream:
    """One call of ModelStreamInfer.

    Attributes:
        engine: Answers.
        read: Reads a request.
        context: The call's.
        client: Returns the client's identity.
        slots: One for each request that may be open at a time.
        region: The peer region that forwards the requests; "": none does.
    """

    engine: Engine
    read: Read
    context: grpc.aio.ServicerContext[Any, Any]
    client: Callable[[], str]
    slots: asyncio.Semaphore
    region: str = ""
    _sequencer: ResponseSequencer = field(default_factory=ResponseSequencer)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False  # the client sends no more
    _complete: bool = False
    _open: int = 0  # requests whose last answer has not left

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Answer until the client sends no more and all requests are answered.

        Raises:
            ServiceError: The first error, where the stream fails fast.
            Unavailable: The router shuts down, and all requests that it took are answered.
        """
        try:
            async with asyncio.TaskGroup() as writing:
                writing.create_task(self._send(), name="router.stream.write")
                async with asyncio.TaskGroup() as answering:
                    waking = answering.create_task(self._wake_at_end(), name="router.stream.end")
                    async for body in requests:
                        self._open += 1
                        await self.slots.acquire()
                        answering.create_task(
                            self._answer(*self._begin(body)), name="router.stream"
                        )
                    self._ended = True
                    waking.cancel()
                self._complete = True
                self._changed.set()
        except ExceptionGroup as group:
            raise next(leaves(group)) from group

    def _begin(self, body: bytes) -> tuple[StreamedRequest, bytes, Head | ServiceError]:
        """Open a request, in order of arrival."""
        try:
            head = self.read(body)
        except ServiceError as error:
            return self._sequencer.open(ordered=True), body, error
        hello = self.engine.hellos.get(head.model_name)
        return self._sequencer.open(ordered=not (hello and hello.decoupled)), body, head

    async def _answer(
        self, streamed: StreamedRequest, body: bytes, head: Head | ServiceError
    ) -> None:
        try:
            if isinstance(head, ServiceError):
                raise head
            receiver = _StreamReceiver(lambda part: self._put(streamed, part), self._sequencer)
            with tracing.part("router.stream"), self.engine.charged(self.client):
                answer = await self.engine.infer(
                    head,
                    body,
                    self.context.time_remaining(),
                    receiver,
                    self.client,
                    self.region,
                )
            if not receiver.complete_already:
                self._put(streamed, enclosed(_INFER_RESPONSE, answer.body, _FINAL))
            elif _wants_empty_final(body):
                self._put(streamed, enclosed(_INFER_RESPONSE, _named(head), answer.body, _FINAL))
        except ServiceError as error:
            if _FAILS_FAST in (self.context.invocation_metadata() or ()):
                raise
            self._put(streamed, _failed(error, head))
        self._sequencer.end(streamed)
        self._changed.set()

    def _put(self, streamed: StreamedRequest, body: bytes) -> None:
        self._sequencer.put(streamed, body)
        self._changed.set()

    async def _send(self) -> None:
        """Write responses that may leave, until all have left."""
        while True:
            self._changed.clear()
            while (departure := self._sequencer.next()) is not None:
                body = departure[1]
                if body is None:
                    self._open -= 1
                    self.slots.release()
                else:
                    await self.context.write(body)
            if self._complete:
                return
            if self.engine.closing.is_set() and not self._open and not self._ended:
                raise shutting_down()
            await self._changed.wait()

    async def _wake_at_end(self) -> None:
        """Wake an idle stream when the router shuts down, so that it ends."""
        await self.engine.closing.wait()
        self._changed.set()


@dataclass(eq=False)
class _StreamReceiver:
    """The `ResponseReceiver` of a stream: each response leaves as it comes.

    Attributes:
        complete_already: The last result carried no further response.
    """

    put: Callable[[bytes], None]
    sequencer: ResponseSequencer
    complete_already: bool = False

    def receive_part(self, instance: Instance | None, response: bytes) -> None:
        if self.sequencer.held_bytes > _MAX_UNREAD_BYTES:
            raise ResourceExhausted(
                f"{self.sequencer.held_bytes} bytes of answers wait for the client to read them,"
                f" and {_MAX_UNREAD_BYTES} may",
                reason="SLOW_CLIENT",
            )
        variant = b""
        if instance is not None:
            variant = variant_parameters(instance.variant, instance.accuracy)
        self.put(enclosed(_INFER_RESPONSE, response, variant, _NOT_FINAL))

    def complete(self, response: bytes) -> bytes:
        self.complete_already = not response
        return response


def _wants_empty_final(body: bytes) -> bool:
    given = pb.ModelInferRequest.FromString(body).parameters
    return _EMPTY_FINAL in given and given[_EMPTY_FINAL].bool_param


def _named(head: Head) -> bytes:
    return pb.ModelInferResponse(
        model_name=head.model_name, model_version=head.model_version, id=head.id
    ).SerializeToString()


def _failed(error: ServiceError, head: Head | ServiceError) -> bytes:
    """Return an error as a response: its text, the request it belongs to, and its status."""
    message = pb.ModelStreamInferResponse(error_message=error.message or error.status)
    named = _named(head) if isinstance(head, Head) else b""
    status = string_parameter("cinquefoil_status", error.status)
    reason = string_parameter("cinquefoil_reason", error.reason)
    return message.SerializeToString() + enclosed(_INFER_RESPONSE, named, status, reason, _FINAL)
