"""Cinquefoil on GPUs that come and go: the router's own choice, the planner's own sizes."""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from benchmarks.llm.elastic import Fleet, Site, Unit
from benchmarks.llm.engine import CLOCKS, Limits, Request
from benchmarks.llm.policies import AsRouter, lengths, plan_of
from services.planner.core.forecast.burstiness import Burstiness
from services.planner.core.forecast.demand import ConfiguredLoad, Demand
from services.planner.core.forecast.text_lengths import TextLength
from services.planner.core.model import POISSON
from services.simulator.continuous_batching import Replica

REPORT_S: Final = 5.0
SEEN: Final = 1000  # answers by which the planner knows lengths
FIRST: Final = 100  # before as many have come, all GPUs serve, at their highest clock
DOWN_S: Final = 60.0
WORTH: Final = 0.8
"""A zone's GPUs replace another's where the grid is at most so dirty: moving boots servers."""

_MODEL: Final = "text"


class Cinquefoil:
    """Router and planner.

    Args:
        window: The requests.
        limits: Objectives.
        site: The GPUs' zones, and their intensities.
        consolidates: The router fills instances one after another; else least requests.
        elastic: GPUs come and go.
        zones: Intensities count.
    """

    def __init__(  # noqa: PLR0913  # what is measured by itself
        self,
        window: Sequence[Request],
        limits: Limits,
        site: Site,
        *,
        consolidates: bool = True,
        elastic: bool = True,
        zones: bool = True,
    ) -> None:
        self._window = window
        self._limits = limits
        self._site = site
        self._now_s = 0.0
        self._consolidates = consolidates
        self._elastic = elastic
        self._zones = zones
        self._router = AsRouter(
            window, len(site.zones), limits, zones=site.zones, carbon=self if zones else None
        )
        self._demand = Demand(
            {_MODEL: ConfiguredLoad(1e-6, 1e-6)},
            now_s=lambda: self._now_s,
            scale_down_s=DOWN_S,
            bursts_apart={_MODEL},
            boot_s=lambda _: site.boot_s,
        )
        self._bursts = Burstiness({_MODEL: POISSON}, lambda: self._now_s)
        self._arrived: deque[Request] = deque(maxlen=SEEN)
        self._planned: tuple[Request, ...] = ()  # by whose lengths
        self._reported = 0
        self._coming = 0
        self._serving: list[bool] = []
        self._first_zone = ""
        self.clock = CLOCKS[-1]

    def choose(self, fleet: Fleet, request: Request, number: int) -> Unit:
        """Return the router's choice; see `Policy`."""
        self._now_s, self._coming = request.arrived_s, number + 1
        self._arrived.append(request)
        self._follow(fleet)
        if not self._consolidates:
            return min(fleet.serving, key=lambda unit: (unit.replica.requests, unit.name))
        replicas = [unit.replica for unit in fleet.units]
        return fleet.units[replicas.index(self._router(replicas, request, number))]

    def look(self, fleet: Fleet, now_s: float) -> None:
        """Report the load, plan, and scale; see `Policy`."""
        self._now_s = now_s
        if now_s > 0:
            self._demand.observe("router", {_MODEL: self._coming - self._reported}, REPORT_S)
            self._bursts.observe("router", int(now_s - REPORT_S), {_MODEL: self._per_second(now_s)})
            self._reported = self._coming
        if self._coming < FIRST or now_s < DOWN_S:  # less load counts after so long
            return
        if not self._planned or self._usual().differs(self._usual(self._planned)):
            self._planned = tuple(self._arrived)
        inputs, outputs = lengths(self._planned)
        load_rps = self._demand.rates_rps()[_MODEL]
        wanted, self.clock = plan_of(
            inputs, outputs, load_rps, self._limits, bursts=self._bursts.known[_MODEL]
        )
        if self._elastic:
            fleet.scale(wanted, now_s, self._order(fleet))

    def clock_at(self, replica: Replica, now_s: float) -> float:
        """Return the plan's clock; see `Policy`."""
        del replica, now_s
        return self.clock

    def intensity(self, zone: str) -> float:
        """Return a zone's intensity now, gCO2e/kWh."""
        return self._site.intensity(zone, self._now_s)

    def ratio(self, zone: str) -> None:
        """Return None: no policy here needs it."""

    def _per_second(self, now_s: float) -> list[int]:
        """Return the requests of each second since the last report."""
        counts = [0] * round(REPORT_S)
        for each in self._window[self._reported : self._coming]:
            counts[min(max(int(each.arrived_s - now_s + REPORT_S), 0), len(counts) - 1)] += 1
        return counts

    def _usual(self, seen: Collection[Request] = ()) -> TextLength:
        inputs, outputs = lengths(seen or self._arrived)
        return TextLength(float(inputs.mean()), float(outputs.mean()))

    def _follow(self, fleet: Fleet) -> None:
        serving = [unit.state == "on" for unit in fleet.units]
        if serving != self._serving:
            self._router.serve_with(serving)
            self._serving = serving

    def _order(self, fleet: Fleet) -> list[Unit]:
        """Return the GPUs in the order in which they are to serve."""
        if not self._zones:
            return list(fleet.units)
        now = {zone: self.intensity(zone) for zone in self._site.zones}
        least = min(now, key=lambda zone: now[zone])
        if not self._first_zone or now[least] < WORTH * now[self._first_zone]:
            self._first_zone = least
        return sorted(fleet.units, key=lambda unit: (unit.zone != self._first_zone, unit.name))
