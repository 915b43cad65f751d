"""Clients of the services."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cinquefoil.batch.v1 import batch_pb2_grpc
from cinquefoil.carbon.v1 import carbon_pb2_grpc
from cinquefoil.gpuagent.v1 import gpuagent_pb2_grpc
from cinquefoil.planner.v1 import planner_pb2, planner_pb2_grpc
from cinquefoil.predictor.v1 import predictor_pb2_grpc
from cinquefoil.regions.v1 import regions_pb2_grpc
from cinquefoil.router.v1 import router_pb2_grpc
from inference import grpc_service_pb2_grpc
from services.kit.config import Deployment, Endpoint, Role
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument, ServiceError, Unavailable, from_status
from services.kit.rpc import dial
from services.kit.rpc.status import DETAILS_KEY
from services.local.endpoints import endpoints

Stub = TypeVar("Stub")
Message = TypeVar("Message")

TIMEOUT_S = 5.0
"""Of calls that name no timeout."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Stubs of one deployment's services; a failed call raises a ServiceError that a person reads.

    Attributes:
        agents: Agents by node.
        predictor: None where the deployment has no predictor.
        batch: None where it has no batch service.
        planners: Health of each of several planners, by address; one alone has none.
    """

    carbon: carbon_pb2_grpc.CarbonServiceAsyncStub
    planner: planner_pb2_grpc.PlannerServiceAsyncStub
    regions: regions_pb2_grpc.RegionServiceAsyncStub
    router: router_pb2_grpc.RouterServiceAsyncStub
    inference: grpc_service_pb2_grpc.GRPCInferenceServiceAsyncStub
    agents: Mapping[str, gpuagent_pb2_grpc.GpuAgentServiceAsyncStub]
    predictor: predictor_pb2_grpc.PredictorServiceAsyncStub | None
    batch: batch_pb2_grpc.BatchServiceAsyncStub | None
    planners: Mapping[str, Any] = field(default_factory=dict)


@asynccontextmanager
async def connected(deployment: Deployment) -> AsyncIterator[Clients]:
    """Yield clients of the deployment's services; nothing is dialled before the first call."""
    async with AsyncExitStack() as stack:

        async def stub_of(
            kind: Callable[[grpc.aio.Channel], Any], name: Role, at: Endpoint, node: str = ""
        ) -> Any:
            channel = await stack.enter_async_context(
                dial(at.dials, deployment.identity("operator"), deployment.expected(name, node))
            )
            where = " or ".join(at.dials)
            return explaining(
                kind(channel),
                "gpuagent" if node else name,
                where,
                secured=deployment.tls is not None,
            )

        planners = {}
        several = deployment.planner.dials
        for address in several if len(several) > 1 else ():
            expected = deployment.expected("planner")
            channel = dial(address, deployment.identity("operator"), expected)
            planners[address] = health_pb2_grpc.HealthStub(await stack.enter_async_context(channel))
        predictor, router, batch = deployment.predictor, deployment.router, deployment.batch
        yield Clients(
            carbon=await stub_of(carbon_pb2_grpc.CarbonServiceStub, "carbon", deployment.carbon),
            planner=await stub_of(
                planner_pb2_grpc.PlannerServiceStub, "planner", deployment.planner
            ),
            regions=await stub_of(
                regions_pb2_grpc.RegionServiceStub, "planner", deployment.planner
            ),
            router=await stub_of(router_pb2_grpc.RouterServiceStub, "router", router),
            inference=await stub_of(
                grpc_service_pb2_grpc.GRPCInferenceServiceStub, "router", router
            ),
            agents={
                node: await stub_of(gpuagent_pb2_grpc.GpuAgentServiceStub, "agent", endpoint, node)
                for node, endpoint in deployment.nodes.items()
            },
            predictor=None
            if predictor is None
            else await stub_of(predictor_pb2_grpc.PredictorServiceStub, "predictor", predictor),
            batch=None
            if batch is None
            else await stub_of(batch_pb2_grpc.BatchServiceStub, "batch", batch),
            planners=planners,
        )


async def query(
    config: Path, call: Callable[[Clients], Awaitable[Message]], node: str = ""
) -> Message:
    """Return the answer of a deployment's service to one call.

    Args:
        config: Deployment file.
        call: Makes it.
        node: The node whose agent is called; "": none is.

    Raises:
        ConfigError: The file is wrong.
        InvalidArgument: There is no such node.
        ServiceError: The call failed.
    """
    async with connected(await deployment_with(config, node)) as clients:
        return await call(clients)


async def deployment_with(config: Path, node: str) -> Deployment:
    """Return a deployment with a node among its nodes: one that joined is as the planner knows it.

    Args:
        config: Deployment file.
        node: The node's name; "": none in particular.

    Raises:
        ConfigError: The file is wrong.
        InvalidArgument: There is no such node.
        ServiceError: The planner does not answer.
    """
    deployment = load(config)
    if not node or node in deployment.nodes:
        return deployment
    known = list(deployment.nodes)
    if deployment.join is not None:
        async with connected(deployment) as clients:
            fleet = await clients.planner.GetFleet(planner_pb2.GetFleetRequest())
        known = [each.node.name for each in fleet.nodes]
        for each in fleet.nodes:
            if each.node.name == node:
                return deployment.joined(node, each.node.zone, each.address)
    raise InvalidArgument(f"no node {node!r}; there is {', '.join(known) or 'none'}", field="node")


async def check(config: Path, service: str, *, own: bool = False) -> None:
    """Return if a service serves (grpc.health.v1).

    Args:
        config: Deployment file.
        service: A service of the deployment; an agent by the name of its node.
        own: Call with the service's own identity instead of the operator's.

    Raises:
        ConfigError: The file is wrong.
        InvalidArgument: The deployment has no such service.
        Unavailable: The service does not answer, or answers that it does not serve.
    """
    deployment = load(config)
    known = {each.node or each.service: each for each in endpoints(deployment)}
    if service not in known and deployment.join is not None:
        deployment = await deployment_with(config, service)
        known = {each.node or each.service: each for each in endpoints(deployment)}
    if service not in known:
        raise InvalidArgument(f"no service {service!r}; this deployment has {', '.join(known)}")
    found = known[service]
    addresses = (found.endpoint.dial,) if own else found.endpoint.dials
    address = ", ".join(addresses)
    caller = (found.role, found.node) if own else ("operator", "")
    async with dial(
        addresses, deployment.identity(*caller), deployment.expected(found.role, found.node)
    ) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lag behind
        request = health_pb2.HealthCheckRequest()
        secured = deployment.tls is not None
        answer = await explaining(stub, service, address, secured=secured).Check(request)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(
            f"{service} at {address} answers, but does not serve yet: `cinquefoil status` says "
            "what it waits for"
        )


async def first(messages: AsyncIterable[Message]) -> Message | None:
    """Return the first message of a stream and end the stream; None where there is none."""
    async with aclosing(cast(AsyncGenerator[Message, None], messages)) as stream:
        async for message in stream:
            return message
    return None


def explaining(stub: Stub, service: str, address: str, *, secured: bool = False) -> Stub:
    """Return `stub` with calls that fail with a ServiceError.

    Args:
        stub: An asynchronous stub.
        service: The service's name, for the error's sentence.
        address: Where the stub's channel leads.
        secured: The channel uses TLS.
    """
    return cast(Stub, _Explaining(stub, service, address, secured=secured))


class _Explaining:
    def __init__(self, stub: Any, service: str, address: str, *, secured: bool) -> None:
        self._stub, self._service, self._address = stub, service, address
        self._secured = secured

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._stub, name)

        def call(request: Any, *, timeout: float | None = TIMEOUT_S, metadata: Any = None) -> Any:
            made = method(request, timeout=timeout, metadata=metadata)
            return self._messages(made) if hasattr(made, "__aiter__") else self._message(made)

        return call

    async def _message(self, call: Any) -> Any:
        with self._explained():
            return await call

    async def _messages(self, call: Any) -> AsyncIterator[Any]:
        with self._explained():
            try:
                async for message in call:
                    yield message
            finally:
                call.cancel()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            mistrust = _mistrust(error.details() or "") if self._secured else ""
            raise _meaning(self._service, self._address, error, mistrust) from error


def _meaning(
    service: str, address: str, error: grpc.aio.AioRpcError, mistrust: str = ""
) -> ServiceError:
    """Return the message of a failed call; `mistrust`: of certificates, see `_mistrust`."""
    status = error.code().name
    # Our services attach details to every status: without them no service of ours answered.
    ours = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
    if status == "UNAVAILABLE" and not ours:
        if mistrust:
            return Unavailable(
                f"{service} at {address} {mistrust}. `cinquefoil config check` looks at the "
                "certificates; docs/identities.md says how to renew them."
            )
        if "Connection refused" in (error.details() or ""):
            return Unavailable(
                f"{service} at {address} does not answer: nothing listens there yet. It is "
                "starting, which takes seconds, or not running: `cinquefoil up` starts the "
                "deployment; --config names another."
            )
        return Unavailable(
            f"{service} at {address} does not answer. Is it running, and can this machine reach "
            "it? `cinquefoil doctor` looks; --config names another deployment."
        )
    if status == "DEADLINE_EXCEEDED" and not ours:
        return from_status(status, f"{service} at {address} did not answer in time.")
    return from_status(status, f"{service} at {address}: {error.details()} ({status})")


def _mistrust(details: str) -> str:
    """Return the problem of certificates that made a connection fail; "": none."""
    _, found, cause = details.partition("CERTIFICATE_VERIFY_FAILED: ")
    if found:
        reason = cause if "access.roles" in cause else cause.partition(":")[0]
        return f"shows a certificate that is not trusted here: {reason}"
    if "handshake failed" in details:
        return "does not speak TLS, or not as the deployment file says"
    if "Socket closed" in details or "Connection reset" in details:
        return (
            "closed the connection: it does not trust the certificate of this command (expired, "
            "or of another authority)"
        )
    return ""
