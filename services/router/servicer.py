"""The gRPC services: the Open Inference Protocol, and the router's own status."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from importlib.metadata import version
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceServicer
from inference import grpc_service_pb2 as pb
from services.kit import config
from services.kit.clock import Clock
from services.kit.rpc import Caller, caller
from services.kit.rpc.client_identity import client_of
from services.kit.telemetry import tracing
from services.router.adapters.convert import to_receipts, to_status
from services.router.adapters.planner_client import ConfigDigests
from services.router.adapters.region_routers import REGION
from services.router.core.accounting.receipt_watchers import ReceiptWatchers
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.wire import read_head
from services.router.frontend import messages, repository
from services.router.frontend.streams import InferStream
from services.router.runtime.engine import Engine

Context = grpc.aio.ServicerContext[Any, Any]

_Region = pb.SystemSharedMemoryStatusRequest | pb.CudaSharedMemoryStatusRequest
_RECEIPTS_S = 0.5  # between the responses of WatchReceipts
_version = cache(partial(version, "cinquefoil"))
UNCHARGED = frozenset({"ServerLive", "ServerReady", "ModelReady"})
"""Calls that no quota counts: those of load balancers."""
INFERENCE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


@dataclass(eq=False)
class InferenceServicer:
    """The Open Inference Protocol in Triton's shape; methods have the names of its calls."""

    engine: Engine
    clock: Clock
    settings: config.Router
    log_level: str

    # ---- inference, in bytes as they come from and go to the wire ------------------------------

    async def infer(self, request: bytes, context: Context) -> bytes:
        """Answer one request."""
        who = caller()
        client = partial(client_of, context, who)
        with self.engine.charged(client):
            answer = await self.engine.infer(
                read_head(request, self.settings.max_request_bytes),
                request,
                context.time_remaining(),
                client=client,
                region=_region_of(context, who) if self.engine.forwards else "",
            )
        context.set_trailing_metadata(answer.trailers)
        return answer.body

    async def stream_infer(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Answer any number of requests, many at a time."""
        who = caller()
        client = partial(client_of, context, who)
        region = _region_of(context, who) if self.engine.forwards else ""
        slots = asyncio.Semaphore(self.settings.max_stream_requests)
        read = partial(read_head, max_bytes=self.settings.max_request_bytes)
        await InferStream(self.engine, read, context, client, slots, region).run(requests)

    # ---- all other calls -----------------------------------------------------------------------

    def ServerLive(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """Return that the process is up."""
        return pb.ServerLiveResponse(live=True)

    def ServerReady(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """Return whether every model has an instance that takes requests."""
        return pb.ServerReadyResponse(ready=self.engine.registry.ready)

    def ModelReady(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """Return whether the model has an instance that takes requests."""
        dispatcher = self.engine.registry.model(request.name, request.version)
        return pb.ModelReadyResponse(ready=self.engine.registry.accepts(dispatcher))

    def ServerMetadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Return the server's name, version and extensions."""
        return pb.ServerMetadataResponse(
            name="cinquefoil", version=_version(), extensions=messages.EXTENSIONS
        )

    def ModelMetadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """Return the model's tensors, as its workers report them."""
        self.engine.registry.model(request.name, request.version)
        return messages.metadata(request.name, self.engine.hello(request.name))

    def ModelConfig(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """Return Triton's configuration of the model."""
        dispatcher = self.engine.registry.model(request.name, request.version)
        hello = self.engine.hello(request.name)
        return pb.ModelConfigResponse(config=messages.config(dispatcher, hello))

    def ModelStatistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Return counts and times of one model, or of all."""
        registry = self.engine.registry
        models = [registry.model(request.name, request.version)] if request.name else registry
        return pb.ModelStatisticsResponse(model_stats=[self._statistics(m) for m in models])

    def RepositoryIndex(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Return every model, and whether it takes requests."""
        registry = self.engine.registry
        return repository.index(registry, request.repository_name, ready_only=request.ready)

    def RepositoryModelLoad(self, request: pb.RepositoryModelLoadRequest) -> NoReturn:
        """Refuse: the planner decides which models run."""
        raise repository.fixed(self.engine.registry, request.model_name, "load")

    def RepositoryModelUnload(self, request: pb.RepositoryModelUnloadRequest) -> NoReturn:
        """Refuse: the planner decides which models run."""
        raise repository.fixed(self.engine.registry, request.model_name, "unload")

    def SystemSharedMemoryStatus(self, request: _Region) -> Message:
        """Return no region: none is ever registered."""
        repository.check_region(request.name)
        return pb.SystemSharedMemoryStatusResponse()

    def SystemSharedMemoryRegister(self, request: Message) -> NoReturn:
        """Refuse: there is no shared memory with clients."""
        raise repository.shared_memory(request)

    def SystemSharedMemoryUnregister(self, request: Message) -> Message:
        """Return at once: none is ever registered."""
        return pb.SystemSharedMemoryUnregisterResponse()

    # Empty messages: they are the same bytes, whatever their types.
    CudaSharedMemoryStatus = SystemSharedMemoryStatus
    CudaSharedMemoryRegister = SystemSharedMemoryRegister
    CudaSharedMemoryUnregister = SystemSharedMemoryUnregister

    def TraceSetting(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Return how requests are traced."""
        if request.model_name:
            self.engine.registry.model(request.model_name)
        repository.check_unchanged(request.settings)
        return repository.trace_settings(recording=tracing.recording())

    def LogSettings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Return how this process logs."""
        repository.check_unchanged(request.settings)
        return repository.log_settings(self.log_level)

    def _statistics(self, dispatcher: Dispatcher) -> pb.ModelStatistics:
        model = dispatcher.routes.model
        stats = self.engine.accounts[model].stats
        last_s = stats.last_answer_s
        age_s = 0.0 if last_s is None else self.clock.monotonic() - last_s
        now_ms = int(self.clock.now().timestamp() * 1e3)
        return messages.statistics(model, stats, age_s=age_s, now_ms=now_ms)


def _region_of(context: Context, who: Caller) -> str:
    """Return the peer region that forwarded a call; "": none did.

    Only a region's certificate counts, and only for that region.
    """
    if not who.may_be("region"):
        return ""
    named = (str(value) for key, value in context.invocation_metadata() or () if key == REGION)
    return who.node or next(named, "")


def add_inference(servicer: InferenceServicer, server: grpc.aio.Server) -> None:
    """Register the protocol: inference in bytes, all other calls by their names."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(servicer.infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(servicer.stream_infer),
    }
    for method in INFERENCE.methods:
        if method.name not in handlers:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                _answering(servicer, method.name),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=lambda response: response.SerializeToString(),
            )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(INFERENCE.full_name, handlers),)
    )


def _answering(
    servicer: InferenceServicer, method: str
) -> Callable[[Any, Context], Awaitable[Message]]:
    answer: Callable[[Any], Message] = getattr(servicer, method)

    async def call(request: Any, context: Context) -> Message:
        if method in UNCHARGED:
            return answer(request)
        with servicer.engine.charged(partial(client_of, context, caller())):
            return answer(request)

    return call


@dataclass(eq=False)
class RouterServicer(RouterServiceServicer):
    """The router's own status."""

    engine: Engine
    watchers: ReceiptWatchers
    router_id: str
    started_at: datetime
    config: ConfigDigests
    clock: Clock

    async def GetStatus(
        self, request: router_pb2.GetStatusRequest, context: Context
    ) -> router_pb2.GetStatusResponse:
        """Return queues, instances and latencies as they are now."""
        status = to_status(self.engine, self.router_id, self.started_at, self.clock)
        status.config_digest = self.config.own
        return status

    async def WatchReceipts(
        self, request: router_pb2.WatchReceiptsRequest, context: Context
    ) -> AsyncIterator[router_pb2.WatchReceiptsResponse]:
        """Stream a share of the receipts until the caller goes, or the router shuts down."""
        sample = request.sample if request.HasField("sample") else 1.0
        closing = self.engine.closing
        with self.watchers.watching(sample, request.model, request.variant) as watcher:
            while not closing.is_set():
                yield to_receipts(self.router_id, *watcher.take(), self.clock)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RECEIPTS_S):
                        await closing.wait()
