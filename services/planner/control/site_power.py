"""Power of sites: agents' meters against budgets, twice a second; each agent gets its share."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.planner.adapters.agent_sessions import AgentSessions
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.fleet import Node
from services.planner.core.power.budgets import PowerBudget
from services.planner.core.power.meters import SiteMeter
from services.planner.core.power.reachable import unreachable
from services.planner.core.power.shares import NodeDraw, shares_w, site_wall_w

_LOOK_S: Final = 0.5
_AHEAD: Final = timedelta(seconds=3)
"""Time before a budget begins in which it is kept already: clocks take effect within a second."""


class SitePower:
    """Compares sites' meters with their budgets, and shares budgets out.

    Args:
        state: The cluster.
        agents: Their sessions have the meters, and take the shares.
        hold: Called after each look with whether all waiting work is to pause, and else which
            models' is.
    """

    def __init__(
        self,
        state: ClusterState,
        agents: AgentSessions,
        hold: Callable[[bool, frozenset[str]], None],
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
        now = state.clock.now()
        in_force = state.power.in_force(now, now + _AHEAD)
        if in_force:
            drawn = self._draws(in_force)
            for site, budget in in_force.items():
                draws = drawn[site]
                self._meter(site, budget, draws)
                for name, share_w in shares_w(budget.limit_w, draws).items():
                    self._agents.share_power(name, share_w, budget.setting)
                    limited.add(name)
        self._agents.share_no_power(limited)
        for site in state.power.meters.keys() - in_force.keys():
            del state.power.meters[site]
        holds = any(meter.holds for meter in state.power.meters.values())
        carbon = state.carbon
        self._hold(holds or carbon.holds_waiting(now), carbon.held_models(now))

    def conditions(self) -> Iterator[Condition]:
        """Yield the budgets that cannot be reached, also those of later."""
        power, now = self._state.power, self._state.clock.now()
        known = power.in_force(now, datetime.max.replace(tzinfo=UTC))
        drawn = self._draws(known) if known else {}
        for site, budget in known.items():
            yield from unreachable(budget, drawn[site], now)

    def _draws(self, sites: Collection[str]) -> dict[str, list[NodeDraw]]:
        """Return the draws of the nodes of each of these sites."""
        fleet = self._state.fleet
        found: dict[str, list[NodeDraw]] = {site: [] for site in sites}
        for name in fleet.settings:
            site = fleet.site(name)
            if site in found and (draw := self._draw(site, name)):
                found[site].append(draw)
        return found

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
