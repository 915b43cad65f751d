"""Lifetime of the agent's process: node lock, drivers, counters and server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from cinquefoil.gpuagent.v1 import gpuagent_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import add_GpuAgentServiceServicer_to_server
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.gpuagent.agent import Agent
from services.gpuagent.devices.hardware import hardware_of
from services.gpuagent.metrics import AgentCollector
from services.gpuagent.node_place import NodePlace, joining, place_of
from services.gpuagent.observation.metrics import ObservationCollector
from services.gpuagent.servicer import GpuAgentServicer
from services.gpuagent.settings import config_builder_of
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.gpuagent.steering.metrics import SteeringCollector
from services.kit.config import Deployment
from services.kit.errors import FailedPrecondition
from services.kit.lock_file import LockFile
from services.kit.process import metrics, systemd
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, Limits, dial, serving

_SERVICES = (gpuagent_pb2.DESCRIPTOR.services_by_name["GpuAgentService"].full_name,)
_LIVE: Final = ("models.*",)
_USED: Final = ("join*", "planner.listen", "planner.address", "mqtt*", "tls*", "access*")
"""Parts of the deployment file that an agent uses, beside its node and the models."""
_GRACE_S: Final = 2.0
_HEARTBEAT_S: Final = 0.25


async def run(  # noqa: PLR0913 - what the command line says, and what tests listen to
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    *,
    node: str = "",
    join: bool = False,
    leave_workers: bool = False,
    reloads: Reloads | None = None,
) -> None:
    """Run the agent of one node until `stop`; then have its segments moved, and end its workers.

    Args:
        deployment: The whole deployment file.
        stop: Ends the agent.
        started: Called with the port once the agent serves.
        node: The node's name; "": the deployment's only one, or with `join` as `node.name` says.
        join: The node announces itself: the deployment file does not name it.
        leave_workers: Leave the workers running at the end, for the next agent to adopt.
        reloads: Reads the file again on request; models and variants are taken over.

    Raises:
        InvalidArgument: No such node, or it may not join.
        FailedPrecondition: Another agent runs on this node, or a state file is damaged.
    """
    if join:
        deployment, node = joining(deployment, node)
    place = place_of(deployment, node)
    config_builder = await asyncio.to_thread(config_builder_of, deployment, place.settings)
    with _only_agent(place):
        async with (
            hardware_of(place) as hardware,
            dial(
                deployment.planner.dials,
                deployment.identity("agent", place.name),
                deployment.expected("planner"),
            ) as channel,
            asyncio.TaskGroup() as keeping,
        ):
            heart = keeping.create_task(_beat(hardware.gpu_counters), name="agent.heart")
            agent = Agent(deployment, place, hardware, config_builder, keeping)
            if reloads is not None:
                reloads.serve((f"nodes.{place.name}*", *_USED), _LIVE, agent.reload)
            await agent.begin()
            async with _served(deployment, agent, started):
                await agent.work(PlannerServiceStub(channel), stop, leave_workers=leave_workers)
            heart.cancel()


@contextmanager
def _only_agent(place: NodePlace) -> Iterator[None]:
    """Hold the node's lock file while the block runs.

    Raises:
        FailedPrecondition: Another agent runs on this node, or the folder cannot be written.
    """
    path = place.folder / "agent.lock"
    with LockFile(path, f"nodes.{place.name}.state_dir") as lock:
        if not lock.take():
            raise FailedPrecondition(
                f"another agent runs on this node: {lock.holder()}, holds {path}",
                reason="AGENT_RUNNING",
            )
        yield


async def _beat(gpu_counters: Mapping[str, SharedCounters]) -> None:
    """Write the agent's heartbeat for the workers until cancelled; no driver's call blocks it."""
    while True:
        for counters in gpu_counters.values():
            counters.beat()
        await asyncio.sleep(_HEARTBEAT_S)


@asynccontextmanager
async def _served(
    deployment: Deployment, agent: Agent, started: Callable[[int], None] | None
) -> AsyncIterator[None]:
    """Answer calls and expose metrics while the block runs."""
    place = agent.place
    servicer = GpuAgentServicer(agent.report, agent.transactions)
    governors = agent.clock_loop.governors
    collector = AgentCollector(agent.node, agent.accounts, agent.drift, governors)
    tls, access = deployment.identity("agent", place.name), Access.of(deployment)
    health = HealthServicer(systemd.ready)
    async with (
        metrics.exposed(
            place.settings.metrics,
            [collector, ObservationCollector(agent.observer), SteeringCollector(agent.steering)],
            service="gpuagent",
            tls=tls,
            access=access,
            ready=lambda: health.ready,
        ),
        serving(
            place.settings.listen,
            lambda server: add_GpuAgentServiceServicer_to_server(servicer, server),
            _SERVICES,
            tls=tls,
            access=access,
            grace_s=_GRACE_S,
            limits=Limits(streams=place.settings.max_connection_requests),
            probes=place.settings.health,
            health_servicer=health,
        ) as server,
    ):
        if started is not None:
            started(server.port)
        yield
