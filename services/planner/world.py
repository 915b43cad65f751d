"""All that a decision depends on, as it is now."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.kit.clock import Clock
from services.kit.deployment import Objective
from services.planner.demand import Demand
from services.planner.fleet import Fleet
from services.planner.notice import Notice
from services.planner.triggers import Observation


@dataclass(slots=True)
class World:
    """What the service has been told; `changed` is notified after every change.

    Attributes:
        clock: Time.
        fleet: Nodes, by their agents' reports.
        demand: Load, by the routers' reports.
        objective: What a good plan is.
        strategy: Who looks for it.
        intensity_gco2e_per_kwh: By zone, by the carbon service.
        changed: Wakes who waits for news.
    """

    clock: Clock
    fleet: Fleet
    demand: Demand
    objective: Objective
    strategy: str
    intensity_gco2e_per_kwh: dict[str, float] = field(default_factory=dict)
    changed: Notice = field(default_factory=Notice)

    def aim(self, carbon_weight: float | None, strategy: str | None) -> None:
        """Change the objective, as far as given."""
        if carbon_weight is not None:
            update = {"carbon_weight": carbon_weight}
            self.objective = self.objective.model_copy(update=update)
        self.strategy = strategy or self.strategy
        self.changed.notify()

    def learn(self, intensity_gco2e_per_kwh: dict[str, float]) -> None:
        """Take in new intensities, by zone."""
        self.intensity_gco2e_per_kwh.update(intensity_gco2e_per_kwh)
        self.changed.notify()

    def observe(self) -> Observation | None:
        """Return what can cause a plan, or None where planning makes no sense now.

        It needs GPUs, the intensity of all their zones, and every node either here or given up.
        With no GPU left the last routes stay: workers may serve on although their agents are
        out of reach, and routers notice by themselves where they do not.
        """
        now_s = self.clock.monotonic()
        nodes = list(self.fleet.nodes(now_s))
        known = self.intensity_gco2e_per_kwh
        gpus = {(node.name, gpu.uuid): gpu.type.name for node in nodes for gpu in node.gpus}
        if self.fleet.unsettled_s(now_s) > 0 or not gpus:
            return None
        if any(node.zone not in known for node in nodes):
            return None
        return Observation(
            intensity_gco2e_per_kwh={node.zone: known[node.zone] for node in nodes},
            demand_rps=self.demand.rates_rps(),
            gpus=gpus,
            segments=frozenset(run.spec for node in nodes for run in node.segments),
            strategy=self.strategy,
            carbon_weight=self.objective.carbon_weight,
        )
