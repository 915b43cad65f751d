"""The grid's clock and intensity, as the carbon service reports them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cinquefoil.carbon.v1.carbon_pb2 import WatchRequest
from services.cli.client import Clients
from services.kit.clock import Clock


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
