"""Executes steps: each idempotent, each verified by reading back."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from services.gpuagent.blueprint import Blueprint, Drafter
from services.gpuagent.clocks import Clocks
from services.gpuagent.device import GpuInfo, NvmlGpus
from services.gpuagent.device_thread import DeviceThread
from services.gpuagent.domain import (
    Action,
    CreateSlice,
    DestroySlice,
    LockClock,
    Outcome,
    SegmentSpec,
    StartSegment,
    StopSegment,
)
from services.gpuagent.segments import Segments
from services.kit import logs
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition, NotFound, ServiceError, Unavailable

_log = logs.get("steps")


@dataclass(slots=True)
class Steps:
    """Changes a node.

    Attributes:
        device: The GPUs.
        segments: What runs on them.
        drafter: Draws blueprints.
        clocks: Holds SM clocks.
        clock: Time.
        changed: Called after each change of the node.
    """

    device: DeviceThread
    segments: Segments
    drafter: Drafter
    clocks: Clocks
    clock: Clock
    changed: Callable[[], None]
    # What is on a GPU is looked at and changed by one step at a time; waiting for workers to
    # answer or to drain happens outside.
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )

    async def execute(self, action: Action) -> Outcome:
        """Do what a step says; whatever goes wrong is in the outcome."""
        began_s = self.clock.monotonic()
        error: ServiceError | None = None
        try:
            await self._do(action)
        except ServiceError as failure:
            error = failure
        elapsed_s = self.clock.monotonic() - began_s
        _log.info(
            "step", action=str(action), ok=error is None, error=error and error.message,
            elapsed_s=round(elapsed_s, 3),
        )  # fmt: skip
        self.changed()
        return Outcome(error, elapsed_s)

    async def blueprint(self, spec: SegmentSpec) -> Blueprint:
        """Return a segment's blueprint on the GPU as it is now.

        Raises:
            NotFound: No such GPU, model or variant.
            FailedPrecondition: The slice does not exist, or the segment does not fit.
        """
        gpu = await self._gpu(spec.gpu_uuid)
        return await asyncio.to_thread(self.drafter.draw, spec, gpu)

    async def _do(self, action: Action) -> None:
        match action:
            case CreateSlice():
                await self._create(action)
            case DestroySlice():
                await self._destroy(action)
            case LockClock():
                async with self._locks[action.gpu_uuid]:
                    await self.clocks.hold(action)
            case StartSegment(spec):
                async with self._locks[spec.gpu_uuid]:
                    running = await self.segments.begin(await self.blueprint(spec))
                await self.segments.wait(running)
            case StopSegment(segment_id, grace_s):
                await self.segments.stop(segment_id, grace_s)

    async def _create(self, action: CreateSlice) -> None:
        async with self._locks[action.gpu_uuid]:
            await self.device.call(NvmlGpus.create_slice, action.gpu_uuid, action.placement)
            if not await self._exists(action):
                raise Unavailable(f"{action.placement} is not there after it was created")

    async def _destroy(self, action: DestroySlice) -> None:
        async with self._locks[action.gpu_uuid]:
            occupant = self.segments.occupant(action.gpu_uuid, action.placement)
            if occupant:
                raise FailedPrecondition(
                    f"segment {occupant} runs on {action.placement}; stop it first",
                    reason="SLICE_IN_USE",
                )
            await self.device.call(NvmlGpus.destroy_slice, action.gpu_uuid, action.placement)
            if await self._exists(action) and (await self._gpu(action.gpu_uuid)).mig_enabled:
                raise Unavailable(f"{action.placement} is still there after it was destroyed")

    async def _exists(self, action: CreateSlice | DestroySlice) -> bool:
        gpu = await self._gpu(action.gpu_uuid)
        return any(placement == action.placement for placement, _ in gpu.slices)

    async def _gpu(self, uuid: str) -> GpuInfo:
        gpus = await self.device.call(NvmlGpus.list)
        found = next((gpu for gpu in gpus if gpu.uuid == uuid), None)
        if found is None:
            raise NotFound(f"this node has no GPU {uuid}", field="gpu_uuid")
        return found
