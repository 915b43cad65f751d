"""Times operators on a GPU that the node's agent has reserved, at its highest clock and at half."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import typer

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import gpuagent_pb2_grpc as pb_grpc
from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu, Node
from services.cli.client import deployment_with, explaining
from services.cli.profile.request import chosen_gpus
from services.gpuagent.profiling.core.operator_bucket import Bucket
from services.gpuagent.profiling.profiler.rig import reserved
from services.gpuagent.profiling.sensitivity.database import Database
from services.gpuagent.profiling.sensitivity.measure import Bench, Measured, OperatorEffort, missing
from services.kit.errors import FailedPrecondition, NotFound
from services.kit.operators.core.clock_sensitivity import CLOCK_DROP, Cost
from services.kit.operators.core.graph import Graph
from services.kit.operators.onnx_reader import load
from services.kit.operators.random_inputs import Sizes
from services.kit.rpc import dial


@dataclass(frozen=True, slots=True)
class Place:
    """The GPU to measure on.

    Attributes:
        config: Deployment file.
        node: The node, one of the file's.
        gpu: UUID; "": the node's only one.
        wait: Wait until nothing runs there.
    """

    config: Path
    node: str
    gpu: str
    wait: bool


async def measured(
    file: Path, graph: Graph, sizes: Sizes, database: Database, place: Place
) -> Measured:
    """Return the device, with the times of all kernels that the database does not know.

    The network runs in this process: CUDA needs the GPU's devices.

    Raises:
        NotFound: The node has no such GPU.
        FailedPrecondition: The GPU is simulated, or the agent may not hold clocks.
        ServiceError: The agent cannot do it, or the GPU cannot run the model.
    """
    deployment = await deployment_with(place.config, place.node)
    endpoint = deployment.nodes[place.node]
    async with dial(
        endpoint.dial, deployment.identity("operator"), deployment.expected("agent", place.node)
    ) as channel:
        agent: pb_grpc.GpuAgentServiceAsyncStub = pb_grpc.GpuAgentServiceStub(channel)
        client = explaining(agent, "gpuagent", endpoint.dial)
        gpu = _gpu((await client.GetNode(pb.GetNodeRequest())).node, place)
        device, top_mhz = gpu.type.name, gpu.type.max_clock_mhz
        wanted = missing(graph, lambda bucket: database.find(bucket, device, "measured"))
        if not wanted:
            return Measured(device, {})
        name = f"sensitivity-{uuid4().hex[:8]}"
        async with reserved(agent, (gpu.uuid,), name, wait=place.wait, waiting=_waiting) as rig:
            bench = await asyncio.to_thread(lambda: Bench(load(file), graph, sizes))
            # CUDA starts in this process only after that, and sees nothing else.
            os.environ["CUDA_VISIBLE_DEVICES"] = await rig.hold(top_mhz)
            clocks_mhz = (top_mhz, round(top_mhz * (1 - CLOCK_DROP)))
            return Measured(
                device, await at_both(bench, wanted, rig.hold, clocks_mhz, OperatorEffort())
            )


def _gpu(node: Node, place: Place) -> Gpu:
    if node.simulated or not node.gpus:
        raise FailedPrecondition(
            f"{place.node} has no GPU to measure on; --gpu TYPE models one from its data sheet"
        )
    (uuid,) = chosen_gpus(place.gpu, node.gpus, 1)
    gpu = next((each for each in node.gpus if each.uuid == uuid), None)
    if gpu is None:
        raise NotFound(f"{place.node} has no GPU {uuid}")
    if not gpu.clock_lockable:
        raise FailedPrecondition(
            f"the agent may not hold clocks: nodes.{place.node}.allow_clocks is off"
        )
    return gpu


async def at_both(
    bench: Bench,
    wanted: tuple[Bucket, ...],
    hold: Callable[[int], Awaitable[object]],
    clocks_mhz: tuple[int, int],
    effort: OperatorEffort,
) -> dict[Bucket, Cost]:
    """Time operators at both clocks; a GPU changes its clock twice, not twice for each.

    Args:
        bench: The operators.
        wanted: Which of them.
        hold: Holds the GPU's clock at so many MHz.
        clocks_mhz: The default clock, and half of it.
        effort: How long each is measured.
    """
    times = []
    for clock_mhz in clocks_mhz:
        await hold(clock_mhz)
        await asyncio.sleep(effort.settle_s)
        times.append(await asyncio.to_thread(bench.latencies_s, wanted, effort))
    default, half = times
    return {bucket: Cost(default[bucket], half[bucket]) for bucket in wanted}


def _waiting(segments: Sequence[str]) -> None:
    typer.echo(f"waiting for {', '.join(segments)} to leave the GPU", err=True)
