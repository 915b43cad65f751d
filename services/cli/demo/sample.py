"""A suite at one moment, by its planner; the grid's time and intensity at any."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cinquefoil.carbon.v1.carbon_pb2 import WatchRequest
from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu, Node
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import Clients, first
from services.cli.console.slice_bars import SliceCells
from services.kit.clock import Clock
from services.local.demo.load import RequestStats


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A GPU at one moment.

    Attributes:
        name: "node/index".
        cells: Its compute slices.
        slices: Those that run something; `runs` is "model/variant".
        idle_w: Power that it draws while its workers wait, W.
    """

    name: str
    cells: int
    slices: tuple[SliceCells, ...]
    idle_w: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One suite at one moment.

    Attributes:
        at: Grid time.
        seconds: Time since the load's start, s.
        plan: Version of the plan that the routes serve.
        gpus: Each GPU, in the order of nodes and indices.
        power_w: Power of all GPUs now, W.
        energy_j: Metered energy of all GPUs since the account began, idle included, J.
        carbon_gco2e: Its carbon.
    """

    at: datetime
    seconds: float
    plan: int
    gpus: tuple[GpuSample, ...]
    power_w: float
    energy_j: float
    carbon_gco2e: float


@dataclass(slots=True)
class SuiteRun:
    """One suite through the day.

    Attributes:
        clients: The suite's services.
        stats: The requests sent to the suite, by model.
        samples: Its planner's reports, oldest first.
    """

    clients: Clients
    stats: defaultdict[str, RequestStats] = field(default_factory=lambda: defaultdict(RequestStats))
    samples: list[Sample] = field(default_factory=list)


async def take_sample(clients: Clients, at: datetime, seconds: float) -> Sample:
    """Read a planner's account and its nodes' segments.

    Raises:
        ServiceError: It does not answer.
    """
    fleet = await clients.planner.GetFleet(planner_pb2.GetFleetRequest())
    snapshot = await first(clients.planner.Watch(planner_pb2.WatchRequest()))
    now = snapshot or planner_pb2.WatchResponse()
    accounts = [account for node in fleet.nodes for account in node.energy]
    return Sample(
        at=at,
        seconds=seconds,
        plan=now.routing.plan_version,
        gpus=tuple(gpu_sample(node.node, gpu) for node in fleet.nodes for gpu in node.node.gpus),
        power_w=sum(account.power_w for account in accounts),
        energy_j=fleet.energy_j,
        carbon_gco2e=fleet.carbon_gco2e,
    )


async def plans_since(clients: Clients, version: int) -> Sequence[plan_pb2.Plan]:
    """Return the plans from `version` on, newest first."""
    response = await clients.planner.ListPlans(planner_pb2.ListPlansRequest(page_size=1000))
    return [plan for plan in response.plans if plan.version >= version]


def gpu_sample(node: Node, gpu: Gpu) -> GpuSample:
    """Return the segments on a GPU."""
    widths = {kind.name: kind.compute_slices for kind in gpu.type.profiles}
    whole = max(widths.values(), default=1)
    specs = (segment.spec for segment in node.segments if segment.spec.gpu_uuid == gpu.uuid)
    slices = tuple(
        SliceCells(
            spec.placement.start,
            widths.get(spec.placement.profile, whole),
            f"{spec.model}/{spec.variant}",
        )
        for spec in specs
    )
    return GpuSample(f"{node.name}/{gpu.index}", whole, slices, gpu.type.context_power_w)


@dataclass(slots=True)
class Grid:
    """Grid time and intensity of one zone; each change sets the clock.

    Attributes:
        zone: The zone followed.
        speedup: Grid seconds per second.
        changes: (grid time, gCO2e/kWh), oldest first.
    """

    zone: str
    speedup: float
    changes: list[tuple[datetime, float]] = field(default_factory=list)
    _seen_s: float = 0.0

    def change(self, since: datetime, intensity_gco2e_per_kwh: float, seen_s: float) -> None:
        """Take in a change that was seen at `seen_s` of the monotonic clock."""
        self.changes.append((since, intensity_gco2e_per_kwh))
        self._seen_s = seen_s

    def now(self, now_s: float) -> datetime:
        """Return the grid time at `now_s` of the monotonic clock."""
        since, _ = self.changes[-1]
        return since + timedelta(seconds=(now_s - self._seen_s) * self.speedup)

    @property
    def intensity_gco2e_per_kwh(self) -> float:
        """The intensity in force."""
        return self.changes[-1][1]


async def follow(grid: Grid, clients: Clients, clock: Clock) -> None:
    """Keep `grid` up to date until cancelled.

    Raises:
        ServiceError: The carbon service went away, or follows no such zone.
    """
    async for response in clients.carbon.Watch(WatchRequest(zones=[grid.zone]), timeout=None):
        for value in response.intensities:
            since = value.since.ToDatetime(UTC)
            grid.change(since, value.intensity_gco2e_per_kwh, clock.monotonic())
