"""GPUs that an operator measures on: kept from the planner, and given back as they were."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Final

from cinquefoil.gpuagent.v1.records import DesiredGpu, StopSegment
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Action, Node, Transaction
from services.gpuagent.core.transaction_rules import named_gpus
from services.gpuagent.reconfigure.transactions import Transactions
from services.gpuagent.supervision.managed_node import ManagedNode
from services.kit.errors import FailedPrecondition, NotFound, ServiceError
from services.kit.mig import WHOLE
from services.kit.segment import gpus_of
from services.kit.telemetry import logs

_log = logs.get("reservations")

POLL_S: Final = 0.25
"""Between looks at whether a GPU has become idle, s."""


@dataclass(slots=True)
class Reservations:
    """GPUs reserved by operators.

    Attributes:
        node: Whose GPUs they are.
        transactions: Bring a GPU back to what it was.
        leaving: The agent ends: the planner is requested to move all that runs on the node.
    """

    node: ManagedNode
    transactions: Transactions
    leaving: bool = False
    _taken: set[str] = field(default_factory=set)
    _waited_for: Counter[str] = field(default_factory=Counter)

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that are not the planner's now."""
        return frozenset(self._taken)

    @property
    def wanted(self) -> frozenset[str]:
        """The GPUs that an operator waits for: the planner is requested to move what runs there."""
        return frozenset(+self._waited_for)

    async def hold(self, gpu_uuid: str, *, wait: bool) -> AsyncGenerator[tuple[str, ...], None]:
        """Hold a GPU until the iterator is closed.

        Args:
            gpu_uuid: The GPU.
            wait: Have the planner move segments that run there, and wait for that.

        Yields:
            The segments that are waited for, again after each change; then (), once: the GPU is
            the caller's, until the iterator is closed.

        Raises:
            NotFound: No such GPU.
            PermissionDenied: This agent may not change its node.
            FailedPrecondition: Another operator has it; or segments run on it, without `wait`.
        """
        self.transactions.permissions.require()
        await self._find(gpu_uuid)
        waited_for: tuple[str, ...] = ()
        self._waited_for[gpu_uuid] += 1
        try:
            while running := self._take(gpu_uuid, wait=wait):
                if running != waited_for:
                    waited_for = running
                    self.node.changed()
                    yield running
                await self.node.clock.sleep(POLL_S)
        finally:
            self._waited_for[gpu_uuid] -= 1
            self.node.changed()
        try:
            gpu, node = await self._find(gpu_uuid)
        except BaseException:
            self._taken.discard(gpu_uuid)
            raise
        try:
            yield ()
            await asyncio.Event().wait()
        finally:
            before = DesiredGpu(
                gpu_uuid=gpu.uuid,
                slices=tuple(place for place, _ in gpu.slices if place.profile != WHOLE),
                clock_mhz=node.clocks.held_mhz.get(gpu.uuid, 0),
            )
            self.node.tasks.create_task(self._restore(before), name=f"restore {gpu_uuid}")

    async def _find(self, gpu_uuid: str) -> tuple[GpuInfo, Node]:
        node = await self.node.read()
        for gpu in node.gpus:
            if gpu.uuid == gpu_uuid:
                return gpu, node
        known = ", ".join(gpu.uuid for gpu in node.gpus)
        raise NotFound(f"this node has no GPU {gpu_uuid!r}; it has {known}", field="gpu_uuid")

    def _take(self, gpu_uuid: str, *, wait: bool) -> tuple[str, ...]:
        """Take a GPU if nothing runs on it; return the segments that do."""
        if gpu_uuid in self._taken:
            raise FailedPrecondition(
                f"{gpu_uuid} is being measured by another operator", reason="GPU_RESERVED"
            )
        running = tuple(each.spec.segment_id for each in self.node.segments.on(gpu_uuid))
        if running and not wait:
            raise FailedPrecondition(
                f"{gpu_uuid} serves {', '.join(running)}: measure on another GPU, or wait "
                "(--force-idle): the planner moves them to others",
                reason="GPU_SERVES",
            )
        if not running:
            self._taken.add(gpu_uuid)
            _log.info("GPU is reserved", gpu=gpu_uuid)
        return running

    def refuse(self, step: Action | Transaction) -> None:
        """Refuse a planner's step on a GPU that is not the planner's now.

        Raises:
            FailedPrecondition: It is one.
        """
        gpus = {each.spec.segment_id: gpus_of(each.spec) for each in self.node.segments.list()}
        for action in step.actions if isinstance(step, Transaction) else (step,):
            uuids = named_gpus(action)
            if isinstance(action, StopSegment):
                uuids = gpus.get(action.segment_id, ())
            if not self._taken.isdisjoint(uuids):
                raise FailedPrecondition(
                    f"{action}: an operator measures on this GPU", reason="GPU_RESERVED"
                )

    def left(self, node: Node) -> Node:
        """Return a node without the GPUs that are not the planner's now."""
        return replace(
            node,
            gpus=tuple(gpu for gpu in node.gpus if gpu.uuid not in self._taken),
            segments=tuple(s for s in node.segments if self._taken.isdisjoint(gpus_of(s.spec))),
        )

    async def _restore(self, before: DesiredGpu) -> None:
        try:
            await self.transactions.apply([before], dry_run=False, allow_gap=True)
        except ServiceError as error:  # the planner will reconfigure it
            _log.warning("GPU is not as before", gpu=before.gpu_uuid, error=error.message)
        self._taken.discard(before.gpu_uuid)
        _log.info("GPU is given back", gpu=before.gpu_uuid)
        self.node.changed()
