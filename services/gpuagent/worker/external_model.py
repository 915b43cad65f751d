"""A model that a server of the Open Inference Protocol runs: Triton, MLServer, or another.

Requests go on as the bytes they came as. Protobuf reads messages that follow one another as one,
of which the last value of a field counts: so the model's name is replaced by appending it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from inference import grpc_service_pb2 as oip
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.core.tokens import TextTokens
from services.gpuagent.worker.external_server import Server, started
from services.gpuagent.worker.model_port import Answers, Model, ModelFailed, Request, SendPart, Text
from services.gpuagent.worker.tensor_messages import VERSION
from services.gpuagent.worker.work_messages import Body
from services.kit import proxies
from services.kit.clock import Clock
from services.kit.config import ExternalRuntime, Tls
from services.kit.errors import (
    Cancelled,
    ResourceExhausted,
    ServiceError,
    Unavailable,
    from_status,
)
from services.kit.rpc import dial
from services.kit.rpc.status import from_wire

_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_FAILS_FAST: Final = (("triton_grpc_error", "true"),)  # errors come as statuses, not as text only
_FINAL: Final = "triton_final_response"
_TIMEOUT_S: Final = 5.0
_LONGEST_S: Final = 300.0
"""For requests without a deadline, s."""

_TRY_ELSEWHERE: Final = frozenset({"ABORTED", "CANCELLED", "UNAVAILABLE"})
_KEYS: Final = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})
_MODELS_FAULT: Final = frozenset({"DATA_LOSS", "INTERNAL", "UNKNOWN"})

SendOne = Callable[[bytes], Awaitable[bool]]
"""`model.SendPart` of one request."""


@dataclass(frozen=True, slots=True, eq=False)
class Forwarded(Request):
    """A request as it is sent. Attributes: data (serialized), deadline_s."""

    data: Body
    deadline_s: float


@asynccontextmanager
async def external_model(
    spec: WorkerSpec, runtime: ExternalRuntime, clock: Clock
) -> AsyncIterator[ExternalModel]:
    """Start the server where it has to be, and wait until it has the model ready.

    Raises:
        RuntimeError: The server ended, or has no such model.
    """
    tls = Tls(**dict(runtime.tls), require_client_certificate=False) if runtime.tls else None
    async with (
        started(spec, runtime) as server,
        dial(
            server.address,
            tls,
            dead_after_s=None,
            message_bytes=spec.message_bytes,
            direct=not proxies.variable_for(f"grpc://{server.address}"),
        ) as channel,
    ):
        model = ExternalModel(spec, runtime, channel, server, clock)
        await server.until_ready(model.ready)
        await model.describe()
        yield model


class ExternalModel(Model[Forwarded]):
    """The worker's side of a server.

    Args:
        spec: The worker's spec.
        runtime: Settings of the server.
        channel: To the server.
        server: Its process, where the worker started it.
        clock: The worker's.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        runtime: ExternalRuntime,
        channel: grpc.aio.Channel,
        server: Server,
        clock: Clock,
    ) -> None:
        self._name = runtime.model_name or spec.variant
        self._version = runtime.model_version
        self._infer: Any = channel.unary_unary(_INFER)  # without serializers: bytes in, bytes out
        self._stream: Any = channel.stream_stream(_STREAM)
        self._stub = GRPCInferenceServiceStub(channel)
        self._server = server
        self._through = proxies.note(f"grpc://{server.address}")
        self._clock = clock
        self._renamed = oip.ModelInferRequest(
            model_name=self._name, model_version=self._version
        ).SerializeToString()
        self._named_back = oip.ModelInferResponse(
            model_name=spec.model, model_version=VERSION
        ).SerializeToString()

    def read(self, data: Body, deadline_s: float) -> Forwarded:
        """Read the fields that the worker needs; the server checks the rest.

        Raises:
            InvalidArgument: It is not a ModelInferRequest, or refers to shared memory.
            NotFound: It names another version of the model.
        """
        request = tensor_messages.decode(data)
        tensor_messages.refuse_regions(request)
        sizes = (tensor.shape[0] for tensor in request.inputs if tensor.shape)
        items = max(sizes, default=1)
        # Of one kind: the server itself forms batches.
        return Forwarded(data, deadline_s, id=request.id, items=items, kind="any")

    async def compute(self, requests: Sequence[Forwarded], send: SendPart) -> Answers:
        """Send a batch's requests at the same time; the server joins them as it likes."""
        return await asyncio.gather(
            *(self._forward(each, partial(send, at)) for at, each in enumerate(requests))
        )

    async def failure(self) -> str:
        """Wait until the server has ended, or says several times that it is not ready."""
        return await self._server.failure(self.ready, self._name)

    async def ready(self) -> bool:
        """Return whether the server has the model ready; not there yet: False."""
        wanted = oip.ModelReadyRequest(name=self._name, version=self._version)
        try:
            server = await self._stub.ServerReady(oip.ServerReadyRequest(), timeout=_TIMEOUT_S)
            return server.ready and (await self._stub.ModelReady(wanted, timeout=_TIMEOUT_S)).ready
        except grpc.aio.AioRpcError:
            return False

    async def describe(self) -> None:
        """Request the model's metadata; without an answer: none, and a single response."""
        which = {"name": self._name, "version": self._version}
        with suppress(grpc.aio.AioRpcError):
            config = oip.ModelConfigRequest(**which)
            found = (await self._stub.ModelConfig(config, timeout=_TIMEOUT_S)).config
            self.decoupled = found.model_transaction_policy.decoupled
        answer = oip.ModelMetadataResponse()
        with suppress(grpc.aio.AioRpcError):
            wanted = oip.ModelMetadataRequest(**which)
            answer = await self._stub.ModelMetadata(wanted, timeout=_TIMEOUT_S)
        answer.ClearField("name")
        answer.versions[:] = [VERSION]
        self.metadata = answer.SerializeToString()

    async def _forward(self, request: Forwarded, send: SendOne) -> bytes | Text | ServiceError:
        left_s = min(request.deadline_s - self._clock.monotonic(), _LONGEST_S)
        data = b"".join((request.data, self._renamed))
        timeout_s = max(left_s, 0.0)
        try:
            async with self._server.answering():
                if self.decoupled:
                    return await self._follow(data, timeout_s, send)
                response: bytes = await self._infer(data, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return self._explained(error, left_s)
        except Unavailable as error:
            return error
        return response + self._named_back

    async def _follow(self, data: bytes, timeout_s: float, send: SendOne) -> Text | ServiceError:
        """Send the parts of an answer as they come; return the last, b"" if none said it was."""
        last, tokens = b"", TextTokens()
        call = self._stream(timeout=timeout_s, metadata=_FAILS_FAST)
        try:
            await call.write(data)
            await call.done_writing()
            async for message in call:
                answer = oip.ModelStreamInferResponse.FromString(message)
                if answer.error_message:
                    return ModelFailed(answer.error_message)
                made, read = tensor_messages.tokens_of(answer.infer_response)
                tokens.add(made, self._clock.monotonic(), input_tokens=read)
                part = answer.infer_response.SerializeToString() + self._named_back
                if answer.infer_response.parameters[_FINAL].bool_param:
                    last = part
                elif not await send(part):
                    return Cancelled("cancelled while it was computed")
        finally:
            call.cancel()  # where its end was not reached
        return Text(last, tokens)

    def _explained(self, error: grpc.aio.AioRpcError, left_s: float) -> ServiceError:
        """Return a server's error as ours; Unavailable: another instance may do better."""
        status, details = error.code().name, error.details() or "no details"
        if status in _MODELS_FAULT:
            return ModelFailed(details)
        said = f"{self._server.name} answered {status}: {details}{self._through}"
        retry_s = from_wire(error).retry_after_s
        if status == ResourceExhausted.status:
            return ResourceExhausted(said, retry_after_s=retry_s)
        too_long = status == "DEADLINE_EXCEEDED" and left_s >= _LONGEST_S
        if status in _TRY_ELSEWHERE or too_long:
            return Unavailable(said, retry_after_s=retry_s)
        if status in _KEYS:
            return ModelFailed(said)
        return from_status(status, details)
