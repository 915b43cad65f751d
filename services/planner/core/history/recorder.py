"""Sums of the present minute, from reports of agents and routers and from the grid."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cinquefoil.planner.v1.records import (
    FleetHistory,
    GpuHistory,
    HistoryPoint,
    ModelHistory,
    ZoneHistory,
)
from services.planner.core.accounting.accountant import Metered
from services.planner.core.grid_events.site_meter import SiteNodes
from services.planner.core.history.points import MINUTE, start_of
from services.planner.core.load_report import LoadReport
from services.planner.core.model import Model
from services.planner.core.service_level import ServiceTarget

MAX_GPUS: Final = 256
"""Largest fleet whose GPUs have a history each: of more the plans and the sum say enough."""

_GRACE_S: Final = 15.0
"""Time for which reports of a minute are awaited after its end, s."""

_LONGEST_LOOK_S: Final = 30.0
"""Longest time between two looks at the grid that counts: a longer time is unknown, s."""

_NO_SITES: Final = SiteNodes()
_NO_LIMITS: Final[Mapping[str, float]] = {}

_Pair = list[float]


def _pair() -> _Pair:
    return [0.0, 0.0]


@dataclass(slots=True)
class _Answers:
    arrived: int = 0
    answered: int = 0
    late: int = 0
    refused: int = 0
    timed: int = 0
    latency_s: float = 0.0
    accuracy: float = 0.0


@dataclass(slots=True)
class _Minute:
    """Running sums of a minute.

    Attributes:
        energy_j, base_energy_j, carbon_gco2e, base_carbon_gco2e: As of FleetHistory.
        gpus: Time covered, s, and energy, J, by UUID.
        zones: Time known, s, and intensity times time, by zone.
        limits: Time with a power limit, s, and the limit times time, by site.
        routed_s: Time covered by each router's reports, s.
        models: Answers by model.
    """

    energy_j: float = 0.0
    base_energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    base_carbon_gco2e: float = 0.0
    gpus: defaultdict[str, _Pair] = field(default_factory=lambda: defaultdict(_pair))
    zones: defaultdict[str, _Pair] = field(default_factory=lambda: defaultdict(_pair))
    limits: defaultdict[str, _Pair] = field(default_factory=lambda: defaultdict(_pair))
    routed_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    models: defaultdict[str, _Answers] = field(default_factory=lambda: defaultdict(_Answers))

    def point(self, start_s: int, models: Mapping[str, Model], sites: SiteNodes) -> HistoryPoint:
        """Return the sums as a point."""
        return HistoryPoint(
            since=datetime.fromtimestamp(start_s, UTC),
            fleet=FleetHistory(
                metered_s=max((covered_s for covered_s, _ in self.gpus.values()), default=0.0),
                energy_j=self.energy_j,
                base_energy_j=self.base_energy_j,
                carbon_gco2e=self.carbon_gco2e,
                base_carbon_gco2e=self.base_carbon_gco2e,
                routed_s=max(self.routed_s.values(), default=0.0),
            ),
            zones={zone: ZoneHistory(*sums) for zone, sums in sorted(self.zones.items())},
            models={
                name: _with_objective(answers, models.get(name))
                for name, answers in sorted(self.models.items())
            },
            gpus={uuid: GpuHistory(*sums) for uuid, sums in sorted(self.gpus.items())}
            if len(self.gpus) <= MAX_GPUS
            else {},
            sites=sites.history(self.gpus, {site: (a, b) for site, (a, b) in self.limits.items()}),
        )


def _with_objective(answers: _Answers, model: Model | None) -> ModelHistory:
    return ModelHistory(
        arrived=answers.arrived,
        answered=answers.answered,
        late=answers.late,
        refused=answers.refused,
        timed=answers.timed,
        latency_s=answers.latency_s,
        accuracy=answers.accuracy,
        slo_latency_s=model.slo_latency_s if model else 0.0,
        slo_percentile=model.slo_percentile if model else 0.0,
    )


class Recorder:
    """Sums by minute that still grow. Times are Unix seconds of one clock, which may jump."""

    def __init__(self) -> None:
        self._minutes: dict[int, _Minute] = {}

    def meter(self, metered: Metered, now_s: float) -> None:
        """Add energy that GPUs drew in the time up to now.

        Of a time that began before the minutes that are awaited, only the share in these counts:
        when the energy of a gap in the reports was drawn is unknown.
        """
        for minute, share in self._shares(metered.length_s, now_s):
            minute.energy_j += metered.energy_j * share
            minute.base_energy_j += metered.base_energy_j * share
            minute.carbon_gco2e += metered.carbon_gco2e * share
            minute.base_carbon_gco2e += metered.base_carbon_gco2e * share
            for uuid, energy_j in metered.gpus.items():
                sums = minute.gpus[uuid]
                sums[0] += metered.length_s * share
                sums[1] += energy_j * share

    def _shares(self, length_s: float, now_s: float) -> Iterator[tuple[_Minute, float]]:
        """Yield the minutes that the time up to now touches, with their shares of it."""
        start_s = start_of(now_s, MINUTE.step_s)
        if now_s - length_s >= start_s:
            yield self._minute(start_s), 1.0
            return
        yield self._minute(start_s), (now_s - start_s) / length_s
        if now_s - start_s < _GRACE_S:
            before_s = min(length_s - (now_s - start_s), MINUTE.step_s)
            yield self._minute(start_s - MINUTE.step_s), before_s / length_s

    def report(self, report: LoadReport, aims: Mapping[str, ServiceTarget], now_s: float) -> None:
        """Add a router's window, with the accuracies of the variants that answered."""
        minute = self._minute(start_of(now_s, MINUTE.step_s))
        minute.routed_s[report.router_id] += report.window_s
        for model in (*report.arrivals, *report.by_variant, *report.refused):
            minute.models[model]  # a row of zeros says that there was nothing
        for model, count in report.arrivals.items():
            minute.models[model].arrived += count
        for model, count in report.refused.items():
            minute.models[model].refused += count
        for model, by_variant in report.by_variant.items():
            answers, answered = minute.models[model], sum(by_variant.values())
            accuracies = aims[model].accuracies if model in aims else {}
            answers.answered += answered
            answers.late += report.late.get(model, 0)
            for variant, count in by_variant.items():
                answers.accuracy += accuracies.get(variant, 0.0) * count
            if model in report.latency_s:
                answers.timed += answered
                answers.latency_s += report.latency_s[model] * answered

    def look(
        self,
        intensity_gco2e_per_kwh: Mapping[str, float],
        now_s: float,
        lasted_s: float,
        limit_w: Mapping[str, float] = _NO_LIMITS,
    ) -> None:
        """Add intensities, and limits of sites, that have been in force since the last look."""
        if not 0 < lasted_s <= _LONGEST_LOOK_S:
            return
        minute = self._minute(start_of(now_s, MINUTE.step_s))
        for zone, intensity in intensity_gco2e_per_kwh.items():
            sums = minute.zones[zone]
            sums[0] += lasted_s
            sums[1] += intensity * lasted_s
        for site, each_w in limit_w.items():
            minute.limits[site][0] += lasted_s
            minute.limits[site][1] += each_w * lasted_s

    def closed(
        self, now_s: float, models: Mapping[str, Model], sites: SiteNodes = _NO_SITES
    ) -> list[HistoryPoint]:
        """Remove and return the minutes that nothing is awaited of, in order of time.

        Those after the present one are among them: the clock was set back.
        """
        over = [start_s for start_s in self._minutes if not self._awaited(start_s, now_s)]
        return [
            self._minutes.pop(start_s).point(start_s, models, sites) for start_s in sorted(over)
        ]

    def open(self, models: Mapping[str, Model], sites: SiteNodes = _NO_SITES) -> list[HistoryPoint]:
        """Return the minutes that still grow, in order of time."""
        return [minute.point(at_s, models, sites) for at_s, minute in sorted(self._minutes.items())]

    @staticmethod
    def _awaited(start_s: int, now_s: float) -> bool:
        return start_s <= now_s < start_s + MINUTE.step_s + _GRACE_S

    def _minute(self, start_s: int) -> _Minute:
        return self._minutes.setdefault(start_s, _Minute())
