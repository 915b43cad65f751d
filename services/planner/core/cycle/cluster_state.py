"""All that a decision depends on, as it is now."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.kit.clock import Clock
from services.kit.config import Objective
from services.planner.change_event import Notice
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.demand import Demand
from services.planner.core.grid_signal import GridSignal
from services.planner.core.model import Period
from services.planner.core.online_search.counter_readings import Reading, Tally
from services.planner.core.service_level import ServiceLevel
from services.planner.core.triggers import Kind, Observation, Trigger
from services.planner.core.variant_blocklist import Distrust


@dataclass(slots=True)
class World:
    """What the service has been told; `changed` is notified after every change.

    Attributes:
        clock: Time.
        fleet: Nodes, by their agents' reports.
        demand: Load, by the routers' reports.
        level: What requests get, by the routers' reports.
        objective: What a good plan is.
        strategy: Who looks for it.
        intensity_gco2e_per_kwh: By zone, by the carbon service.
        signal: How old that is, and how steady.
        foreseen: Intensity in the periods to come, by zone, by the carbon service.
        distrust: Variants that agents gave up on.
        tally: What was done and how fast, by the agents' and the routers' reports.
        changed: Wakes who waits for news.
    """

    clock: Clock
    fleet: Fleet
    demand: Demand
    level: ServiceLevel
    objective: Objective
    strategy: str
    intensity_gco2e_per_kwh: dict[str, float] = field(default_factory=dict)
    signal: GridSignal = field(default_factory=GridSignal)
    foreseen: tuple[Period, ...] = ()
    distrust: Distrust = field(default_factory=Distrust)
    tally: Tally = field(default_factory=Tally)
    changed: Notice = field(default_factory=Notice)

    def aim(self, carbon_weight: float | None, strategy: str | None) -> None:
        """Change the objective, as far as given."""
        if carbon_weight is not None:
            update = {"carbon_weight": carbon_weight}
            self.objective = self.objective.model_copy(update=update)
        self.strategy = strategy or self.strategy
        self.changed.notify()

    def learn(
        self,
        intensity_gco2e_per_kwh: dict[str, float],
        staleness_s: Mapping[str, float] | None = None,
    ) -> None:
        """Take in new intensities, by zone, and how old they are, grid time."""
        self.intensity_gco2e_per_kwh.update(intensity_gco2e_per_kwh)
        self.signal.hear(intensity_gco2e_per_kwh, staleness_s or {}, self.clock.monotonic())
        self.changed.notify()

    def need_more(self, models: Iterable[str], why: str) -> None:
        """Take in that an agent's GPU cannot serve these models any faster."""
        self.level.need_more(models, why)
        self.changed.notify()

    def foresee(self, periods: tuple[Period, ...]) -> None:
        """Take in what intensities are expected, the present period first.

        No news to wake anybody for: a forecast alone is no cause to plan.
        """
        self.foreseen = periods

    def demand_rps(self) -> dict[str, float]:
        """Return the load to provide for, by model: more of it where requests were late."""
        headroom = self.level.headroom(self.clock.monotonic())
        rates_rps = self.demand.rates_rps()
        return {model: rps * headroom.get(model, 1.0) for model, rps in rates_rps.items()}

    def ask_more(self, trigger: Trigger, seen: Observation) -> tuple[Trigger, Observation]:
        """Ask more of the next plan where promises are broken: the same would come out otherwise.

        Returns:
            Cause and circumstances with what is now asked.
        """
        if not (seen.late or seen.inaccurate):
            return trigger, seen
        self.level.demand_more(self.objective.accuracy_floor, self.clock.monotonic())
        asked = replace(seen, demand_rps=self.demand_rps())
        more = (
            f"provides for {asked.demand_rps[m.model]:.1f} req/s of {m.model}" for m in seen.late
        )
        return replace(trigger, reason="; ".join((trigger.reason, *more))), asked

    def decided(self, trigger: Trigger, *, changed: bool) -> None:
        """Learn whether anything came of a decision, and what had caused it."""
        self.level.decided(
            inaccurate=trigger.kind is Kind.ACCURACY,
            changed=changed,
            now_s=self.clock.monotonic(),
        )

    def aims(self) -> Objective:
        """Return the objective to plan with: a higher floor where answers were too inaccurate."""
        floor = self.objective.accuracy_floor + self.level.floor_lift(self.clock.monotonic())
        return self.objective.model_copy(update={"accuracy_floor": min(floor, 1.0)})

    def forecast(self, zones: Mapping[str, float]) -> tuple[Period, ...]:
        """Return the periods to come for which every zone of `zones` is foreseen."""
        return tuple(
            period
            for period in self.foreseen
            if zones.keys() <= period.intensity_gco2e_per_kwh.keys()
        )

    def reading(self) -> Reading:
        """Return all counters as they are now."""
        return self.tally.reading(self.clock.monotonic())

    def unsettled_s(self) -> float:
        """Return after how long to look again although nobody says anything, s."""
        now_s = self.clock.monotonic()
        return min(self.fleet.unsettled_s(now_s) or math.inf, self.signal.settles_s(now_s))

    def observe(self) -> Observation | None:
        """Return what can cause a plan, or None where planning makes no sense now.

        It needs GPUs, the intensity of all their zones, and every node either here or given up.
        With no GPU left the last routes stay: workers may serve on although their agents are
        out of reach, and routers notice by themselves where they do not.
        """
        now_s = self.clock.monotonic()
        nodes = list(self.fleet.nodes(now_s))
        known = self.intensity_gco2e_per_kwh
        gpus = {
            (node.name, gpu.uuid): gpu.type.name
            for node in nodes
            for gpu in node.gpus
            if not gpu.wanted
        }
        if self.fleet.unsettled_s(now_s) > 0 or not gpus:
            return None
        if any(node.zone not in known for node in nodes):
            return None
        self.distrust.learn((run for node in nodes for run in node.segments), now_s)
        return Observation(
            intensity_gco2e_per_kwh={node.zone: known[node.zone] for node in nodes},
            steady_gco2e_per_kwh=self.signal.ranges(now_s),
            demand_rps=self.demand_rps(),
            gpus=gpus,
            segments=frozenset(run.spec for node in nodes for run in node.segments),
            strategy=self.strategy,
            carbon_weight=self.objective.carbon_weight,
            distrusted=self.distrust.names(now_s),
            late=self.level.late(),
            inaccurate=()
            if self.level.bears(now_s)
            else self.level.inaccurate(self.objective.accuracy_floor),
        )
