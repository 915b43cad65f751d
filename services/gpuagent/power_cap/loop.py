"""The power cap of a node: its share of a site's power budget, kept by its own meters."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.gpuagent.core.device_port import PowerLimits
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.board_limits import BoardLimits
from services.gpuagent.power_cap.core.control import NONE, PowerControl, Throttle
from services.gpuagent.supervision.managed_node import ManagedNode
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("power_cap")


@dataclass(slots=True, kw_only=True, eq=False)
class PowerCap:
    """Keeps the power of a node's devices below its share. The last share holds without a planner.

    Attributes:
        node: Whose GPUs they are.
        gpus: The GPUs.
        power_w: Returns the metered power by GPU, W.
        boards: Sets power limits.
    """

    PERIOD_S: ClassVar = 0.5
    LEARN_S: ClassVar = 30.0
    """Time between two attempts, s: shorter than a refusal is reported for."""

    node: ManagedNode
    gpus: tuple[GpuInfo, ...]
    power_w: Callable[[], Mapping[str, float]]
    boards: BoardLimits
    _limit_w: float = math.inf
    _setting: str = ""
    _control: PowerControl = field(default_factory=lambda: PowerControl(1.0, None))
    _boards: dict[str, PowerLimits] = field(default_factory=dict)
    _set: Throttle = NONE
    _refused: bool = False

    async def begin(self) -> None:
        """Give back what an agent before this one had set, and learn what may be lowered."""
        await self.boards.restore()
        floor = 1.0
        if self.node.clocks.state.may_lock:
            lockable = [gpu.model.clocks_mhz for gpu in self.gpus if gpu.model.performance]
            floor = min((min(each) / max(each) for each in lockable), default=1.0)
        self._control = PowerControl(floor, None)
        await self.learn()

    async def learn(self) -> None:
        """Read the power limits of boards that have not said theirs yet.

        Until a board does, lower clocks alone reduce its power.
        """
        for gpu in self.gpus:
            if gpu.uuid not in self._boards:
                with suppress(ServiceError):
                    self._boards[gpu.uuid] = await self.boards.read(gpu.uuid)
        if self._boards:
            each = self._boards.values()
            self._control.limits_w = sum(b.least_w for b in each), sum(b.default_w for b in each)

    def set_share(self, limit_w: float, setting: str) -> None:
        """Take over the most power that the devices may draw, W; infinite: any."""
        if math.isinf(limit_w) != math.isinf(self._limit_w):
            _log.info("power share", limit_w=limit_w, setting=setting)
        self._limit_w, self._setting = limit_w, setting

    async def look(self) -> None:
        """Compare the meters with the share once, and lower or raise what may be."""
        if math.isinf(self._limit_w) and self._set.none:
            return
        drawn_w = self.power_w()
        throttle = self._control.look(
            self.node.clock.monotonic(),
            sum(drawn_w.values()),
            sum(map(self._idle_w, self.gpus)),
            self._limit_w,
            max((self._clock(gpu) for gpu in self.gpus), default=1.0),
        )
        if throttle == self._set:
            return
        try:
            await self._apply(throttle, drawn_w)
        except ServiceError as error:
            if not self._refused:
                _log.warning("power does not follow", error=error.message)
            self._refused = True
        else:
            self._set, self._refused = throttle, False

    def conditions(self) -> Iterator[Condition]:
        """Yield the condition of a node whose power is capped."""
        throttle = self._set
        if throttle.none and not self._control.exhausted:
            return
        held = []
        if throttle.clock < 1:
            held.append(f"clocks at {throttle.clock:.0%} of the highest".replace("%", " %"))
        if not math.isinf(throttle.limit_w):
            held.append(f"power limits of {throttle.limit_w:.0f} W")
        end = "; nothing more can be lowered" if self._control.exhausted else ""
        share = f"at most {self._limit_w:.0f} W" if math.isfinite(self._limit_w) else "a share"
        yield Condition(
            ConditionKind.POWER_CAPPED,
            f"node/{self.node.name}",
            f"{self.node.name} keeps {share} by {' and '.join(held) or 'nothing'}{end}",
            self._setting,
        )

    def _idle_w(self, gpu: GpuInfo) -> float:
        """Return a GPU's power without work, W: workers' contexts keep its clocks up."""
        used = any(True for _ in self.node.segments.on(gpu.uuid))
        return gpu.model.context_power_w if used else gpu.model.idle_power_w

    def _clock(self, gpu: GpuInfo) -> float:
        in_force_mhz = self.node.clocks.in_force_mhz(gpu.uuid)
        return in_force_mhz / gpu.model.max_clock_mhz if in_force_mhz else 1.0

    async def _apply(self, throttle: Throttle, drawn_w: Mapping[str, float]) -> None:
        if self.node.clocks.state.may_lock and throttle.clock != self._set.clock:
            for gpu in self.gpus:
                if gpu.model.performance:
                    await self.node.clocks.cap(gpu.uuid, _clock_mhz(gpu, throttle.clock))
        if throttle.limit_w == self._set.limit_w:
            return
        if math.isinf(throttle.limit_w):
            await self.boards.release()
            return
        total_w = max(sum(drawn_w.values()), 1.0)
        for uuid in tuple(self._boards):
            share_w = throttle.limit_w * drawn_w.get(uuid, 0.0) / total_w
            await self.boards.set(uuid, share_w)


def _clock_mhz(gpu: GpuInfo, ratio: float) -> int:
    """Return the highest supported clock within a share of the highest, MHz; 0: no cap."""
    if ratio >= 1:
        return 0
    clocks_mhz = gpu.model.clocks_mhz
    most_mhz = ratio * max(clocks_mhz)
    return max((mhz for mhz in clocks_mhz if mhz <= most_mhz), default=min(clocks_mhz))
