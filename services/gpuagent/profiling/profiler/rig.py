"""Reserved GPUs, set up for one point after another through their agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import inventory_pb2
from services.gpuagent.profiling.core.sweep import Point
from services.kit.errors import NotFound, ServiceError, Unavailable
from services.kit.mig import WHOLE
from services.kit.profiles.core.measurement import Fingerprint
from services.kit.rpc.record_mapping import from_message
from services.kit.rpc.status import from_wire

if TYPE_CHECKING:
    from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceAsyncStub

TIMEOUT_S: Final = 10.0
SET_UP_S: Final = 120.0
"""A worker may take a minute to load its model."""

DID_NOT_RUN: Final = ("DID_NOT_RUN", "DOES_NOT_FIT", "FIXED_BATCH", "WORKER_ENDED")
"""Reasons of failures that are the segment's own: starting it, or running batches on it."""

T = TypeVar("T")


@dataclass(slots=True)
class Rig:
    """A reserved GPU, or several that hold one model together.

    Attributes:
        agent: The node's agent.
        node: The node.
        gpu: The GPU, or the first, as it was when it was reserved.
        software: What drives it.
        name: Prefix of the segments' ids; unique over time.
        ended: Returns whether the reservation has ended.
        peers: Further GPUs that each segment holds, as they were.
    """

    agent: GpuAgentServiceAsyncStub
    node: inventory_pb2.Node
    gpu: inventory_pb2.Gpu
    software: pb.Software
    name: str
    ended: Callable[[], bool]
    peers: tuple[inventory_pb2.Gpu, ...] = ()
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _running: tuple[str, str, Point] | None = None
    _segment_id: str = ""

    def fingerprint(self, measured_on: str) -> Fingerprint:
        """Return what measurements here depend on; the date is an argument."""
        return from_message(
            self.software,
            Fingerprint,
            gpu=self.gpu.type.name,
            gpus=1 + len(self.peers),
            product_name=self.gpu.type.product_name,
            simulated=self.node.simulated,
            measured_on=measured_on,
        )

    async def set_up(self, model: str, variant: str, point: Point) -> tuple[str, ...]:
        """Make the GPU one slice with one segment, at a clock; return its workers' endpoints.

        Workers that run already, and only the clock differs, are left alone.

        Raises:
            FailedPrecondition: With a reason of `DID_NOT_RUN`: it cannot run there.
            ServiceError: The agent cannot do it.
        """
        wanted = (model, variant, Point(point.profile, point.processes, point.batch_size))
        if wanted != self._running:
            self._running, self._segment_id = wanted, f"{self.name}-{next(self._numbers)}"
        segment = inventory_pb2.SegmentSpec(
            segment_id=self._segment_id,
            model=model,
            variant=variant,
            batch_size=point.batch_size,
            processes=point.processes,
            peer_gpu_uuids=[each.uuid for each in self.peers],
        )
        node = await self._one_slice(point.profile, point.clock_mhz, segment)
        running = (s for s in node.segments if s.spec.segment_id == self._segment_id)
        return tuple(endpoint for each in running for endpoint in each.endpoints)

    async def hold(self, clock_mhz: int) -> str:
        """Make the GPU one slice, as large as there is, with nothing on it, at a clock.

        Returns:
            The UUID by which CUDA knows it.

        Raises:
            ServiceError: The agent cannot do it.
        """
        self._running = None
        largest = max(self.gpu.type.profiles, key=lambda kind: kind.compute_slices).name
        node = await self._one_slice(largest, clock_mhz)
        gpu = next(each for each in node.gpus if each.uuid == self.gpu.uuid)
        return str(gpu.slices[0].uuid)

    async def clear(self) -> None:
        """Restore the GPUs to their former state."""
        await self._reconfigure(*(_as_it_was(each) for each in (self.gpu, *self.peers)))

    async def _one_slice(
        self, profile: str, clock_mhz: int, *segments: inventory_pb2.SegmentSpec
    ) -> inventory_pb2.Node:
        """Make the GPU one slice with these segments, and return the node then."""
        place = inventory_pb2.Placement(profile=profile, start=self._start(profile))
        for segment in segments:
            segment.placement.CopyFrom(place)
        slices = [] if profile == WHOLE else [place]
        await self._reconfigure(
            pb.DesiredGpu(
                gpu_uuid=self.gpu.uuid, slices=slices, segments=segments, clock_mhz=clock_mhz
            ),
            *(pb.DesiredGpu(gpu_uuid=each.uuid, clock_mhz=clock_mhz) for each in self.peers),
        )
        return (await checked(self.agent.GetNode(pb.GetNodeRequest(), timeout=TIMEOUT_S))).node

    async def _reconfigure(self, *gpus: pb.DesiredGpu) -> None:
        if self.ended():
            raise Unavailable(f"the agent gave {self.gpu.uuid} back: it may have been restarted")
        request = pb.ReconfigureRequest(gpus=gpus, allow_gap=True)
        await checked(self.agent.Reconfigure(request, timeout=SET_UP_S))

    def _start(self, profile: str) -> int:
        starts = {each.name: each.starts for each in self.gpu.type.profiles}
        if profile not in starts:
            raise NotFound.at(
                "slices", f"{self.gpu.type.name} has no {profile!r}; it has {', '.join(starts)}"
            )
        return starts[profile][0]


@asynccontextmanager
async def reserved(
    agent: GpuAgentServiceAsyncStub,
    gpu_uuids: Sequence[str],
    name: str,
    *,
    wait: bool,
    waiting: Callable[[Sequence[str]], None],
) -> AsyncIterator[Rig]:
    """Reserve a GPU, or several, while the block runs, then restore the former state.

    Args:
        agent: The node's agent.
        gpu_uuids: The GPU, or those that each segment holds together.
        name: Prefix of segment ids; unique over time.
        wait: Wait for segments that run there.
        waiting: Called with them.

    Raises:
        NotFound: The node has no such GPU.
        FailedPrecondition: Segments run there, and `wait` is not set; or another operator has it.
        ServiceError: The agent does not answer, or may not change its node.
    """
    async with AsyncExitStack() as stack:
        # All at once: the planner moves nothing from one of them to another.
        calls = [agent.Reserve(pb.ReserveRequest(gpu_uuid=uuid, wait=wait)) for uuid in gpu_uuids]
        for call in calls:
            stack.callback(call.cancel)
        for call in calls:
            while waiting_for := (await _reply(call)).waiting_for:
                waiting(waiting_for)
        found = await checked(agent.GetNode(pb.GetNodeRequest(), timeout=TIMEOUT_S))
        known = {each.uuid: each for each in found.node.gpus}
        gpu, *others = (known[uuid] for uuid in gpu_uuids)
        rig = Rig(
            agent,
            found.node,
            gpu,
            found.software,
            name,
            lambda: any(call.done() for call in calls),
            tuple(others),
        )
        try:
            yield rig
        finally:
            with suppress(ServiceError):  # the agent does it too, when the streams end
                await rig.clear()


def _as_it_was(gpu: inventory_pb2.Gpu) -> pb.DesiredGpu:
    slices = [each.placement for each in gpu.slices if each.placement.profile != WHOLE]
    return pb.DesiredGpu(gpu_uuid=gpu.uuid, slices=slices, clock_mhz=gpu.locked_clock_mhz)


async def checked(call: Awaitable[T]) -> T:
    """Await a call.

    Raises:
        ServiceError: The agent's error.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_wire(error) from error


async def _reply(call: Any) -> pb.ReserveResponse:
    reply = await checked(call.read())
    if not isinstance(reply, pb.ReserveResponse):
        raise Unavailable("the agent ended the reservation")
    return reply
