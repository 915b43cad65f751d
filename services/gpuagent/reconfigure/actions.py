"""Carries out single actions: each idempotent, each verified by reading back."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DestroySlice,
    LockClock,
    SegmentSpec,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.device_port import IN_USE
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Action
from services.gpuagent.core.worker_config import WorkerConfig, WorkerConfigBuilder
from services.gpuagent.devices.mig_mode import MigModes
from services.gpuagent.supervision.managed_node import ManagedNode
from services.kit.errors import FailedPrecondition, Unavailable
from services.kit.mig import WHOLE
from services.kit.segment import gpus_of

NO_ANSWER: Final = "NO_ANSWER"
_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8)
"""Delay before retrying a GPU in use: drivers release a process some time after its end."""


@dataclass(slots=True)
class Actions:
    """Changes one thing at a time.

    Attributes:
        node: What is changed.
        config_builder: Builds the configurations of workers.
        modes: Switches MIG mode.
    """

    node: ManagedNode
    config_builder: WorkerConfigBuilder
    modes: MigModes
    # One action at a time reads and changes a GPU; it waits for workers to answer or drain
    # outside the lock.
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )

    async def do(self, action: Action) -> None:
        """Carry out an action.

        Raises:
            ServiceError: The action failed.
        """
        match action:
            case CreateSlice():
                await self._patiently(action.gpu_uuid, lambda: self._create(action))
            case DestroySlice():
                await self._patiently(action.gpu_uuid, lambda: self._destroy(action))
            case SetMigMode():
                await self._patiently(action.gpu_uuid, lambda: self._set_mig_mode(action))
            case LockClock():
                async with self._locks[action.gpu_uuid]:
                    await self.node.clocks.hold(action)
            case StartSegment(spec):
                async with self._locked(spec):
                    running = await self.node.segments.begin(await self.worker_config(spec))
                await self.node.segments.wait(running)
            case StopSegment(segment_id, grace):
                await self.node.segments.stop(segment_id, grace.total_seconds())

    async def resume(self, spec: SegmentSpec, timeout_s: float) -> None:
        """Run a segment that ran before, and wait for its answer.

        Raises:
            ServiceError: It does not run.
            Unavailable: It does not answer within `timeout_s`; unlike one that is new, it is not
                stopped then, and its supervisors keep trying. The reason is `NO_ANSWER`.
        """
        async with self._locked(spec):
            running = await self.node.segments.begin(await self.worker_config(spec))
        if not await self.node.segments.answers(running, timeout_s):
            raise Unavailable(
                f"segment {spec.segment_id} was started again and does not answer yet",
                reason=NO_ANSWER,
            )

    def check(self, action: Action) -> None:
        """Refuse actions that this agent cannot or may not carry out.

        Raises:
            NotFound: The deployment has no such model and variant.
            PermissionDenied: A right that this agent was not given.
        """
        match action:
            case StartSegment(spec):
                self.config_builder.network(spec)
            case SetMigMode():
                self.modes.check()
            case LockClock():
                self.node.clocks.check()

    async def worker_config(self, spec: SegmentSpec) -> WorkerConfig:
        """Return the configuration of a segment's workers on the GPU as it is now.

        Raises:
            NotFound: No such GPU, model or variant.
            FailedPrecondition: The slice does not exist, or the segment does not fit.
        """
        gpus = [await self._gpu(uuid) for uuid in gpus_of(spec)]
        return await asyncio.to_thread(self.config_builder.build, spec, *gpus)

    @asynccontextmanager
    async def _locked(self, spec: SegmentSpec) -> AsyncIterator[None]:
        """Hold the GPUs of a segment while the block runs, taken in one order by all."""
        async with AsyncExitStack() as stack:
            for uuid in sorted(gpus_of(spec)):
                await stack.enter_async_context(self._locks[uuid])
            yield

    async def _patiently(self, gpu_uuid: str, work: Callable[[], Awaitable[None]]) -> None:
        """Work on one GPU; try again for a while where the driver says that it is in use."""
        for pause_s in (*_PAUSES_S, None):
            try:
                async with self._locks[gpu_uuid]:
                    await work()
            except FailedPrecondition as error:
                if error.reason != IN_USE or pause_s is None:
                    raise
                await self.node.clock.sleep(pause_s)
            else:
                return

    async def _create(self, action: CreateSlice) -> None:
        await self.node.device.call(lambda d: d.create_slice(action.gpu_uuid, action.placement))
        if not await self._exists(action):
            raise Unavailable(f"{action.placement} is not there after it was created")

    async def _destroy(self, action: DestroySlice) -> None:
        gpu = await self._gpu(action.gpu_uuid)
        if action.placement.profile == WHOLE or not gpu.mig_enabled:
            return  # an uncut GPU has no slices that could go
        occupants = self.node.segments.at(action.gpu_uuid, action.placement)
        if occupants:
            raise FailedPrecondition(
                f"segment {occupants[0].segment_id} runs on {action.placement}; stop it first",
                reason="SLICE_IN_USE",
            )
        await self.node.device.call(lambda d: d.destroy_slice(action.gpu_uuid, action.placement))
        if await self._exists(action):
            raise Unavailable(f"{action.placement} is still there after it was destroyed")

    async def _set_mig_mode(self, action: SetMigMode) -> None:
        busy = self.node.segments.on(action.gpu_uuid)
        gpu = await self._gpu(action.gpu_uuid)
        slices = [str(placement) for placement, _ in gpu.slices if placement.profile != WHOLE]
        if gpu.mig_enabled != action.enabled and (busy or slices):
            found = ", ".join([*(each.spec.segment_id for each in busy), *slices])
            raise FailedPrecondition(
                f"MIG mode changes only on an idle GPU; {action.gpu_uuid} has {found}",
                reason="GPU_NOT_IDLE",
            )
        await self.modes.switch(action)

    async def _exists(self, action: CreateSlice | DestroySlice) -> bool:
        gpu = await self._gpu(action.gpu_uuid)
        return any(placement == action.placement for placement, _ in gpu.slices)

    async def _gpu(self, uuid: str) -> GpuInfo:
        return await self.node.device.call(lambda d: d.get(uuid))
