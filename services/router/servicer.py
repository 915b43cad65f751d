"""The gRPC services: the Open Inference Protocol, and the router's own status."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import grpc

from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceServicer
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)
from services.kit import config
from services.kit.clock import Clock
from services.kit.rpc import caller
from services.kit.telemetry import tracing
from services.router.adapters.convert import to_receipts, to_status
from services.router.adapters.planner_client import ConfigDigests
from services.router.core.accounting.receipt_watchers import ReceiptWatchers
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.wire import Head
from services.router.frontend import messages, repository
from services.router.frontend.client_identity import client_of
from services.router.frontend.streams import InferStream
from services.router.runtime.engine import Engine

Context = grpc.aio.ServicerContext[Any, Any]

_RECEIPTS_S = 0.5  # between the responses of WatchReceipts
_FAILS_FAST = ("triton_grpc_error", "true")


class InferenceServicer(GRPCInferenceServiceServicer):
    """The Open Inference Protocol in Triton's shape."""

    def __init__(
        self, engine: Engine, clock: Clock, settings: config.Router, log_level: str
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._settings = settings
        self._log_level = log_level

    async def ModelInfer(  # type: ignore[override]  # registered in bytes: see add_inference
        self, request: bytes, context: Context
    ) -> bytes:
        """Answer one request, in bytes as they come from and go to the wire."""
        answer = await self._engine.infer(
            self._read(request),
            request,
            context.time_remaining(),
            client=partial(client_of, context, caller()),
        )
        context.set_trailing_metadata(answer.trailers)
        return answer.body

    async def ModelStreamInfer(  # type: ignore[override]  # registered in bytes, and writes itself
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> None:
        """Answer any number of requests, many at a time."""
        stream = InferStream(
            self._engine,
            self._read,
            context.write,
            context.time_remaining,
            client=partial(client_of, context, caller()),
            max_open=self._settings.max_stream_requests,
            fails_fast=_FAILS_FAST in (context.invocation_metadata() or ()),
        )
        await stream.run(request_iterator)

    def _read(self, request: bytes) -> Head:
        return messages.read_request_head(request, self._settings.max_request_bytes)

    async def ServerLive(
        self, request: pb.ServerLiveRequest, context: Context
    ) -> pb.ServerLiveResponse:
        """Return that the process is up."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: pb.ServerReadyRequest, context: Context
    ) -> pb.ServerReadyResponse:
        """Return whether every model has an instance that takes requests."""
        return pb.ServerReadyResponse(ready=self._engine.registry.ready)

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        """Return whether the model has an instance that takes requests."""
        dispatcher = self._engine.registry.model(request.name, request.version)
        return pb.ModelReadyResponse(ready=dispatcher.ready)

    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        """Return the server's name, version and extensions."""
        return pb.ServerMetadataResponse(
            name="cinquefoil", version=version("cinquefoil"), extensions=messages.EXTENSIONS
        )

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        """Return the model's tensors, as its workers report them."""
        registry = self._engine.registry
        registry.model(request.name, request.version)
        why = registry.readiness.why(request.name)
        return messages.metadata(request.name, self._engine.hellos.get(request.name), why)

    async def ModelConfig(
        self, request: pb.ModelConfigRequest, context: Context
    ) -> pb.ModelConfigResponse:
        """Return Triton's configuration of the model."""
        registry = self._engine.registry
        dispatcher = registry.model(request.name, request.version)
        hello = self._engine.hellos.get(request.name)
        why = registry.readiness.why(request.name)
        return pb.ModelConfigResponse(config=messages.config(dispatcher, hello, why))

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        """Return counts and times of one model, or of all."""
        registry = self._engine.registry
        models = [registry.model(request.name, request.version)] if request.name else registry
        return pb.ModelStatisticsResponse(model_stats=[self._statistics(m) for m in models])

    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        """Return every model, and whether it takes requests."""
        registry = self._engine.registry
        return repository.index(registry, request.repository_name, ready_only=request.ready)

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        """Refuse: the planner decides which models run."""
        raise repository.fixed(self._engine.registry, request.model_name, "load")

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        """Refuse: the planner decides which models run."""
        raise repository.fixed(self._engine.registry, request.model_name, "unload")

    async def SystemSharedMemoryStatus(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Return no region: none is ever registered."""
        repository.check_region(request.name)
        return pb.SystemSharedMemoryStatusResponse()

    async def SystemSharedMemoryRegister(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Refuse: there is no shared memory with clients."""
        raise repository.shared_memory("system")

    async def SystemSharedMemoryUnregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Return at once: none is ever registered."""
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Context
    ) -> pb.CudaSharedMemoryStatusResponse:
        """Return no region: none is ever registered."""
        repository.check_region(request.name)
        return pb.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Context
    ) -> pb.CudaSharedMemoryRegisterResponse:
        """Refuse: there is no shared memory with clients."""
        raise repository.shared_memory("CUDA")

    async def CudaSharedMemoryUnregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Return at once: none is ever registered."""
        return pb.CudaSharedMemoryUnregisterResponse()

    async def TraceSetting(
        self, request: pb.TraceSettingRequest, context: Context
    ) -> pb.TraceSettingResponse:
        """Return how requests are traced."""
        if request.model_name:
            self._engine.registry.model(request.model_name)
        repository.check_unchanged(request.settings)
        return repository.trace_settings(recording=tracing.recording())

    async def LogSettings(
        self, request: pb.LogSettingsRequest, context: Context
    ) -> pb.LogSettingsResponse:
        """Return how this process logs."""
        repository.check_unchanged(request.settings)
        return repository.log_settings(self._log_level)

    def _statistics(self, dispatcher: Dispatcher) -> pb.ModelStatistics:
        model = dispatcher.routes.model
        stats = self._engine.accounts[model].stats
        last_s = stats.last_answer_s
        age_s = 0.0 if last_s is None else self._clock.monotonic() - last_s
        now_ms = int(self._clock.now().timestamp() * 1e3)
        return messages.statistics(model, stats, age_s=age_s, now_ms=now_ms)


def add_inference(servicer: InferenceServicer, server: grpc.aio.Server) -> None:
    """Register the protocol; inference goes first, in bytes, and so wins over its typed form."""
    infer: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(servicer.ModelInfer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(servicer.ModelStreamInfer),
    }
    handlers = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", infer)
    server.add_generic_rpc_handlers((handlers,))
    add_GRPCInferenceServiceServicer_to_server(servicer, server)


class RouterServicer(RouterServiceServicer):
    """The router's own status."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per thing it reports
        self,
        engine: Engine,
        watchers: ReceiptWatchers,
        router_id: str,
        started_at: datetime,
        config: ConfigDigests,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._watchers = watchers
        self._router_id = router_id
        self._started_at = started_at
        self._config = config
        self._clock = clock

    async def GetStatus(
        self, request: router_pb2.GetStatusRequest, context: Context
    ) -> router_pb2.GetStatusResponse:
        """Return queues, instances and latencies as they are now."""
        status = to_status(self._engine, self._router_id, self._started_at, self._clock)
        status.config_digest = self._config.own
        return status

    async def WatchReceipts(
        self, request: router_pb2.WatchReceiptsRequest, context: Context
    ) -> AsyncIterator[router_pb2.WatchReceiptsResponse]:
        """Stream a share of the receipts until the caller goes, or the router shuts down."""
        sample = request.sample if request.HasField("sample") else 1.0
        closing = self._engine.closing
        with self._watchers.watching(sample, request.model, request.variant) as watcher:
            while not closing.is_set():
                yield to_receipts(self._router_id, *watcher.take(), self._clock)
                with suppress(TimeoutError):
                    await asyncio.wait_for(closing.wait(), _RECEIPTS_S)
