"""Calls that no role of the caller permits, each made by four callers.

An attack has succeeded if the service did what it requested.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from benchmarks.attacks.target import Target
from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from cinquefoil.gpuagent.v1 import gpuagent_pb2, inventory_pb2, worker_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.net import split_address
from services.kit.rpc import dial

_TIMEOUT_S: Final = 5.0
_PACKS_S: Final = 30.0  # an attacker takes seconds to pack 60 MiB; the server refuses the headers
_REFUSED_WITHIN_S = 0.5
_SILENT: Final = 500
_WATCHES: Final = 200
_LARGE_BYTES: Final = 60 * 2**20
_REFUSED: Final = frozenset(
    {
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "RESOURCE_EXHAUSTED",
        "INVALID_ARGUMENT",
        "UNAVAILABLE",
        "UNIMPLEMENTED",
    }
)
"""UNAVAILABLE: the handshake failed. UNIMPLEMENTED: the server has no such method."""


Attack = Callable[[Target, "Attacker"], Awaitable[str]]
"""Tries one; returns "" where the service did what it requested, else how it was refused."""


@dataclass(frozen=True, slots=True)
class Attacker:
    """A client that attacks. Attributes: name, tls (None: plaintext)."""

    name: str
    tls: Tls | None

    async def call(self, address: str, make: Callable[[grpc.aio.Channel], Any]) -> str:
        """Make one call; return "" where it was answered, else its status."""
        async with dial(address, self.tls) as channel:
            try:
                made = make(channel)
                if hasattr(made, "__aiter__"):
                    async for _ in made:
                        return ""
                    return ""
                await made
            except grpc.aio.AioRpcError as error:
                code = error.code().name
                return code if code in _REFUSED else ""  # it was let in, and failed later
        return ""


def unary(
    service: str,
    stub: Any,
    method: str,
    request: Callable[[Target], Any],
    timeout_s: float = _TIMEOUT_S,
) -> Attack:
    """Return the attack that calls a method once."""

    async def attack(target: Target, attacker: Attacker) -> str:
        address = _address(target, service)
        return await attacker.call(
            address,
            lambda channel: getattr(stub(channel), method)(request(target), timeout=timeout_s),
        )

    return attack


def streamed(service: str, stub: Any, method: str, request: Callable[[Target], Any]) -> Attack:
    """Return the attack that opens a stream with one message."""

    async def attack(target: Target, attacker: Attacker) -> str:
        async def said() -> AsyncIterator[Any]:
            # Who is refused hears it first: grpc.aio says INTERNAL where that overtakes a message.
            await asyncio.sleep(_REFUSED_WITHIN_S)
            yield request(target)

        return await attacker.call(
            _address(target, service),
            lambda channel: getattr(stub(channel), method)(said(), timeout=_TIMEOUT_S),
        )

    return attack


def streamed_answer(service: str, stub: Any, method: str, request: Any) -> Attack:
    """Return the attack that requests a stream of answers."""

    async def attack(target: Target, attacker: Attacker) -> str:
        return await attacker.call(
            _address(target, service),
            lambda channel: getattr(stub(channel), method)(request, timeout=_TIMEOUT_S),
        )

    return attack


async def silent_connections(target: Target, _attacker: Attacker) -> str:
    """Hold connections that say nothing."""
    address = split_address(target.router)
    with ExitStack() as held:
        for _ in range(_SILENT):
            held.enter_context(socket.create_connection(address, timeout=_TIMEOUT_S))
        await asyncio.sleep(1)
    return "harmless"


async def unread_streams(target: Target, attacker: Attacker) -> str:
    """Open streams of plans and read none."""
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(dial(target.planner, attacker.tls))
        stub = PlannerServiceStub(channel)
        calls = [stub.Watch(planner_pb2.WatchRequest()) for _ in range(_WATCHES)]
        await asyncio.sleep(1)
        ended = [await call.code() for call in calls if call.done()]
        for call in calls:
            call.cancel()
    return ended[0].name if len(ended) == _WATCHES else "" if not ended else "partly"


def _joined(target: Target) -> planner_pb2.JoinRequest:
    """Say: I am the agent of node-0, and its worker is mine."""
    node = inventory_pb2.Node(name="node-0", zone="US-CAL")
    segment = node.segments.add(state=inventory_pb2.SEGMENT_STATE_READY)
    segment.spec.segment_id, segment.spec.gpu_uuid = "s-evil", target.gpu
    segment.spec.model, segment.spec.variant = "digits", "linear"
    segment.endpoints.append("127.0.0.1:1")
    return planner_pb2.JoinRequest(node=node)


def _forged_load(_target: Target) -> planner_pb2.ReportLoadRequest:
    """Say: 13 million requests a second, and more answers than there is room for."""
    request = planner_pb2.ReportLoadRequest(router_id="evil")
    request.window.FromSeconds(1)
    load_ = request.models.add(model="digits", arrivals=13_000_000, answered=2**64 - 1)
    load_.latency_s["95"] = float("nan")
    load_.answered_by_variant["linear"] = 2**64 - 1
    return request


def attackers(target: Target) -> tuple[Attacker, ...]:
    """Return everybody who might."""
    return (
        Attacker("a client", target.attacker),
        Attacker("another node's agent", target.tls("agent", "node-evil")),
        Attacker("no certificate", target.stranger),
        Attacker("plaintext", None),
    )


def attacks() -> Iterator[tuple[str, Attack]]:
    """Yield every attack by name."""
    planner, agent = PlannerServiceStub, GpuAgentServiceStub
    yield "join as another node's agent", streamed("planner", planner, "Join", _joined)
    yield "report a forged load", streamed("planner", planner, "ReportLoad", _forged_load)
    for method, request in (
        ("SetObjective", planner_pb2.SetObjectiveRequest(carbon_weight=1.0)),
        ("SetPolicy", planner_pb2.SetPolicyRequest(model="digits", discipline="edf")),
        ("Pin", planner_pb2.PinRequest()),
        ("Unpin", planner_pb2.UnpinRequest()),
        ("Rollback", planner_pb2.RollbackRequest(version=1)),
        ("Apply", planner_pb2.ApplyRequest(proposal_id="1")),
        ("GetFleet", planner_pb2.GetFleetRequest()),
        ("DryRun", planner_pb2.DryRunRequest()),
    ):
        yield f"planner {method}", unary("planner", planner, method, partial(_as_is, request))
    yield "destroy every slice", unary("agent", agent, "Reconfigure", _destroy)
    yield (
        "reserve a GPU",
        unary(
            "agent",
            agent,
            "Reserve",
            lambda target: gpuagent_pb2.ReserveRequest(gpu_uuid=target.gpu),
        ),
    )
    yield "read a node", unary("agent", agent, "GetNode", lambda _: gpuagent_pb2.GetNodeRequest())
    yield (
        "use a worker directly",
        streamed("worker", WorkerServiceStub, "Execute", lambda _: worker_pb2.ExecuteRequest()),
    )
    yield (
        "read the grid",
        unary("carbon", CarbonServiceStub, "ListZones", lambda _: carbon_pb2.ListZonesRequest()),
    )
    yield (
        "describe the router",
        streamed(
            "router",
            reflection_pb2_grpc.ServerReflectionStub,
            "ServerReflectionInfo",
            lambda _: reflection_pb2.ServerReflectionRequest(list_services=""),
        ),
    )
    yield (
        "unload a model",
        unary(
            "router",
            GRPCInferenceServiceStub,
            "RepositoryModelUnload",
            lambda _: pb.RepositoryModelUnloadRequest(model_name="digits"),
        ),
    )
    yield (
        "send 60 MiB to the planner",
        unary(
            "planner",
            planner,
            "SetObjective",
            lambda _: planner_pb2.SetObjectiveRequest(strategy="x" * _LARGE_BYTES),
            _PACKS_S,
        ),
    )
    yield (
        "read others' statistics",
        unary(
            "router",
            GRPCInferenceServiceStub,
            "ModelStatistics",
            lambda _: pb.ModelStatisticsRequest(name="digits"),
        ),
    )
    yield (
        "watch others' receipts",
        streamed_answer(
            "router", RouterServiceStub, "WatchReceipts", router_pb2.WatchReceiptsRequest()
        ),
    )
    yield "500 silent connections", silent_connections
    yield "200 unread streams of plans", unread_streams


def _destroy(target: Target) -> gpuagent_pb2.ReconfigureRequest:
    """Request a GPU without slices and segments."""
    return gpuagent_pb2.ReconfigureRequest(
        gpus=[gpuagent_pb2.DesiredGpu(gpu_uuid=target.gpu)], allow_gap=True
    )


def _as_is(request: Any, _target: Target) -> Any:
    return request


def _address(target: Target, service: str) -> str:
    found = target.deployment
    return {
        "planner": found.planner.listen,
        "carbon": found.carbon.listen,
        "router": found.router.listen,
        "agent": found.nodes["node-0"].listen,
        "worker": target.worker,
    }[service]
