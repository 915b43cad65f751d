"""Power budgets as limits of plans: with what each site draws beside the plan's GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from services.planner.core.fleet import Fleet, Node
from services.planner.core.model import Gpu, Period, SiteLimit
from services.planner.core.power.budgets import PowerBudget, PowerBudgets


@dataclass(frozen=True, slots=True)
class SiteLimits:
    """Limits of the plans of one snapshot.

    Hosts draw `host_power_w`. GPUs that are no longer planned on, as they leave, idle.

    Attributes:
        budgets: Budgets of all sites.
        fleet: The fleet.
        gpus: GPUs of the plan.
        now: Time, UTC.
        now_s: Monotonic time, s.
        ahead: Time ahead in which budgets count for the plan of now: it is to be in force before
            they are.
    """

    budgets: PowerBudgets
    fleet: Fleet
    gpus: Sequence[Gpu]
    now: datetime
    now_s: float
    ahead: timedelta = timedelta()

    @property
    def present(self) -> tuple[SiteLimit, ...]:
        """Limits of the plan of now."""
        ahead = {each.site for each in self.budgets.events if each.site in self.fleet.sites}
        lowest_w = {name: self._lowest_w(name) for name in ahead}
        return self._limits(self.budgets.in_force(self.now, self.now + self.ahead, lowest_w))

    def at(self, start: datetime, end: datetime) -> tuple[SiteLimit, ...]:
        """Return the strictest limits from `start` to `end`, by the sites' names."""
        return self._limits(self.budgets.in_force(start, end))

    def _limits(self, in_force: Mapping[str, PowerBudget]) -> tuple[SiteLimit, ...]:
        if not in_force:
            return ()
        planned = {gpu.uuid for gpu in self.gpus}
        nodes = tuple(self.fleet.nodes(self.now_s))
        return tuple(
            SiteLimit(
                name,
                (1.0 - self.budgets.margin(name)) * budget.limit_w,
                budget.setting,
                sum(
                    self._beside_w(name, node, planned)
                    for node in nodes
                    if self.fleet.sites[name].has(node.name)
                ),
            )
            for name, budget in sorted(in_force.items())
        )

    def along(self, periods: tuple[Period, ...], speedup: float) -> tuple[Period, ...]:
        """Return the coming periods with the limits that are known for each.

        Args:
            periods: Periods, the current one first.
            speedup: Grid time per time.
        """
        if not self.budgets.events or len(periods) < 2:
            return periods
        at = self.now
        found = [replace(periods[0], sites=self.present)]
        for before, period in pairwise(periods):
            at += timedelta(seconds=before.length_s / speedup)
            end = at + timedelta(seconds=period.length_s / speedup)
            found.append(replace(period, sites=self.at(at, end)))
        return tuple(found)

    def _lowest_w(self, site: str) -> float:
        """Return the lowest budget of a site that allows for anything beyond idle power, W."""
        nodes = (n for n in self.fleet.nodes(self.now_s) if self.fleet.sites[site].has(n.name))
        idle_w = sum(self._beside_w(site, node, set()) for node in nodes)
        return idle_w / (1.0 - self.budgets.margin(site))

    def _beside_w(self, site: str, node: Node, planned: set[str]) -> float:
        idle_w = sum(gpu.type.idle_power_w for gpu in node.gpus if gpu.uuid not in planned)
        return self.fleet.pue(node.name) * (self.fleet.sites[site].host_power_w + idle_w)
