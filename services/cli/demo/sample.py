"""What a suite's planner says at one moment; the grid's time and intensity at any."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cinquefoil.carbon.v1.carbon_pb2 import WatchRequest
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import Clients, first
from services.kit.clock import Clock
from services.local.demo.demo_models import MODEL
from services.local.demo.load import RequestStats


@dataclass(frozen=True, slots=True)
class Sample:
    """One suite at one moment.

    Attributes:
        at: Grid time.
        seconds: Time since the load's start, s.
        plan: Version of the plan that the routes serve.
        shares: Share of the load by variant; they sum to 1 once anything serves.
        slices: Number of segments by (variant, slice profile).
        power_w: Power of all GPUs now, W.
        energy_j: Metered energy of all GPUs since the account began, idle included, J.
        carbon_gco2e: Its carbon.
        gpu_energy_j: Metered energy by GPU, J.
    """

    at: datetime
    seconds: float
    plan: int
    shares: Mapping[str, float]
    slices: Mapping[tuple[str, str], int]
    power_w: float
    energy_j: float
    carbon_gco2e: float
    gpu_energy_j: Mapping[str, float]


@dataclass(slots=True)
class SuiteRun:
    """One suite through the day.

    Attributes:
        clients: The suite's services.
        stats: The requests sent to the suite.
        samples: What its planner said, oldest first.
    """

    clients: Clients
    stats: RequestStats = field(default_factory=RequestStats)
    samples: list[Sample] = field(default_factory=list)


async def take_sample(clients: Clients, at: datetime, seconds: float) -> Sample:
    """Read a planner's account and what its routes serve.

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
        shares=shares_of(now.routing),
        slices=slices_of(now.plan),
        power_w=sum(account.power_w for account in accounts),
        energy_j=fleet.energy_j,
        carbon_gco2e=fleet.carbon_gco2e,
        gpu_energy_j={account.gpu_uuid: account.total_j for account in accounts},
    )


async def plans_since(clients: Clients, version: int) -> Sequence[plan_pb2.Plan]:
    """Return the plans from `version` on, newest first."""
    response = await clients.planner.ListPlans(planner_pb2.ListPlansRequest(page_size=1000))
    return [plan for plan in response.plans if plan.version >= version]


def shares_of(routing: plan_pb2.RoutingTable) -> dict[str, float]:
    """Return each variant's share of the digits' load."""
    shares: dict[str, float] = defaultdict(float)
    for model in routing.models:
        if model.model == MODEL:
            for instance in model.instances:
                shares[instance.variant] += instance.share
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()} if total else {}


def slices_of(plan: plan_pb2.Plan) -> dict[tuple[str, str], int]:
    """Return how many segments run each variant on each slice profile."""
    return dict(
        Counter((segment.spec.variant, segment.spec.placement.profile) for segment in plan.segments)
    )


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
