"""Power of sites: agents' meters against budgets, twice a second; each agent gets its share."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from cinquefoil.condition.v1.records import ConditionKind
from services.kit.grouping import grouped
from services.planner.adapters.agent_sessions import AgentSessions
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.fleet import Node
from services.planner.core.power.budgets import PowerBudget
from services.planner.core.power.meters import SiteMeter
from services.planner.core.power.shares import NodeDraw, shares_w, site_wall_w

_LOOK_S: Final = 0.5


class SitePower:
    """Compares sites' meters with their budgets, and shares budgets out.

    Args:
        state: The cluster.
        agents: Their sessions have the meters, and take the shares.
        hold: Called after each look with whether waiting work is to pause.
    """

    def __init__(
        self, state: ClusterState, agents: AgentSessions, hold: Callable[[bool], None]
    ) -> None:
        self._state, self._agents, self._hold = state, agents, hold

    async def keep(self) -> None:
        """Look for ever; without budgets that costs nothing."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Look once."""
        state, limited = self._state, set[str]()
        in_force = state.power.in_force(state.clock.now())
        if in_force:
            nodes = grouped(
                (site, name)
                for name in state.fleet.settings
                if (site := state.fleet.site(name)) in in_force
            )
            for site, budget in in_force.items():
                draws = [draw for name in nodes.get(site, ()) if (draw := self._draw(site, name))]
                self._meter(site, budget, draws)
                for name, share_w in shares_w(budget.limit_w, draws).items():
                    self._agents.share_power(name, share_w, budget.setting)
                    limited.add(name)
        self._agents.share_no_power(limited)
        for site in state.power.meters.keys() - in_force.keys():
            del state.power.meters[site]
        self._hold(any(meter.holds for meter in state.power.meters.values()))

    def _meter(self, site: str, budget: PowerBudget, draws: list[NodeDraw]) -> None:
        state = self._state
        meter = state.power.meters.setdefault(site, SiteMeter())
        capped = any(map(self._is_capped, draws))
        now_s = state.clock.monotonic()
        if meter.look(now_s, site_wall_w(draws), budget.limit_w, capped=capped):
            state.changed.notify()

    def _is_capped(self, draw: NodeDraw) -> bool:
        node = self._state.fleet.node(draw.name)
        conditions = node.conditions if node else ()
        return any(each.kind is ConditionKind.POWER_CAPPED for each in conditions)

    def _draw(self, site: str, name: str) -> NodeDraw | None:
        """Return a node's draw; None: it has never joined, or was given up long ago."""
        fleet = self._state.fleet
        node = fleet.node(name)
        if node is None:
            return None
        connected = fleet.connected(name)
        power_w = self._agents.power_w(name)
        return NodeDraw(
            name,
            fleet.pue(name),
            fleet.sites[site].host_power_w,
            sum(_idle_w(node)),
            sum(gpu.type.metered_limit_w for gpu in node.gpus),
            sum(_idle_w(node)) if power_w is None else power_w,
            fixed=not (connected and fleet.settings[name].controlled),
        )


def _idle_w(node: Node) -> Iterator[float]:
    for gpu in node.gpus:
        yield gpu.type.idle_power_w
