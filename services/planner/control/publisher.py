"""Publishes the routing table and the newest plan to routers and other subscribers."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1.records import (
    Forward,
    Plan,
    PlannedSegment,
    PlanState,
    RoutingTable,
    WaitingRelease,
)
from services.kit.backoff import Backoff
from services.kit.broadcast import Broadcast
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.errors import Unavailable
from services.kit.grouping import summed
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.adapters.store import Store
from services.planner.control.pacing import Pacing
from services.planner.control.serving_policies import ServingPolicies
from services.planner.core.cycle.environment import ChangeEvent
from services.planner.core.fleet import Fleet
from services.planner.core.known_nodes import GpuPower, NodeRoutes
from services.planner.core.routing_table import Announcement, Places, routes

_log = logs.get("publisher")

_CONDITIONS_PAUSE_S = 0.002
_LOOK_S = 2.0
"""Longest time between two looks at the conditions: holds begin and end without a report, s."""

_MAX_PAUSE_S = 0.5
"""Pause per node, and its limit: each joining node changes what all subscribers get, s."""


class Publisher:
    """The only writer of the routing table, which is on disk before any subscriber sees it.

    Attributes:
        routed_before: Nodes' contribution to the table from before the restart, by name.
        conditions: Returns the current conditions; subscribers get them a little later.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator, all made in assembly.py
        self,
        deployment: Deployment,
        store: Store,
        fleet: Fleet,
        policies: ServingPolicies,
        conditions: Callable[[], tuple[Condition, ...]],
        term: Callable[[], int],
    ) -> None:
        """Start without a table.

        Args:
            deployment: The deployment.
            store: Stores the table.
            fleet: Nodes as reported by agents.
            policies: Serving policies of the models.
            conditions: Returns the current conditions.
            term: Returns the term in which this planner leads.
        """
        self._deployment = deployment.model_copy(update={"nodes": fleet.settings})
        self._policies = policies
        self._store = store
        self._fleet = fleet
        self.conditions = conditions
        self._term = term
        self._plan_version = 0
        self._serving: tuple[PlannedSegment, ...] = ()
        self.routed_before: dict[str, NodeRoutes] = {}
        self._routed = -1  # revision of the fleet that the table was made of
        self._publishing = asyncio.Lock()
        self._places: Places | None = None
        table = RoutingTable(0, 0, routes(deployment, (), fleet.routed), term())
        self.board: Broadcast[Announcement] = Broadcast(Announcement(None, table))

    def use(self, deployment: Deployment) -> None:
        """Apply changed models and nodes; removed variants are routed to while they serve."""
        known = self._deployment.models
        models = {
            name: model.model_copy(update={"variants": {**known[name].variants, **model.variants}})
            if name in known
            else model
            for name, model in deployment.models.items()
        }
        self._deployment = deployment.model_copy(
            update={"models": models, "nodes": self._fleet.settings}
        )

    async def restore(self, plans: Iterable[Plan]) -> None:
        """Serve the routing table from before the restart until agents report.

        Args:
            plans: Plans whose segments the table may name, the newest first.
        """
        plans = tuple(plans)
        for plan in plans:
            _note(plan)
        await self._policies.restore()
        table = await self._store.routing() or self.board.value.routing
        table = replace(table, term=self._term())
        self.board.publish(Announcement(plans[0] if plans else None, table))
        instances = (instance for model in table.models for instance in model.instances)
        shares = summed((instance.segment_id, instance.share) for instance in instances)
        planned = {s.spec.segment_id: s for plan in reversed(plans) for s in plan.segments}
        self.routed_before = _of_nodes(table, planned)
        self._plan_version = table.plan_version
        self._serving = tuple(
            replace(planned[segment_id], share=share)
            for segment_id, share in shares.items()
            if segment_id in planned and planned[segment_id].node in self._deployment.nodes
        )

    @property
    def shares(self) -> dict[str, float]:
        """Current share of its model's load of each serving segment, by segment id."""
        return {segment.spec.segment_id: segment.share for segment in self._serving}

    def announce(self, plan: Plan) -> None:
        """Publish a plan, or its new state, after it was stored."""
        _note(plan)
        self.board.publish(
            replace(self.board.value, plan=plan, conditions=_noted(self.conditions()))
        )

    def release(self, releases: tuple[WaitingRelease, ...]) -> None:
        """Publish the waiting work that may run."""
        if releases != self.board.value.releases:
            self.board.publish(replace(self.board.value, releases=releases))

    def forward(self, forwards: tuple[Forward, ...]) -> None:
        """Publish what may go to peer regions; each time, as it expires."""
        if forwards or self.board.value.forwards:
            self.board.publish(replace(self.board.value, forwards=forwards))

    async def serve(self, plan_version: int, segments: Iterable[PlannedSegment]) -> int:
        """Route requests to these segments with these shares, and to no others.

        Returns:
            The revision of the routing table.
        """
        self._plan_version, self._serving = plan_version, tuple(segments)
        return await self.refresh()

    async def refresh(self) -> int:
        """Update the table from the agents' reports; return its revision."""
        async with self._publishing:
            self._routed = self._fleet.routed_revision
            now = self.board.value.routing
            table = RoutingTable(
                revision=now.revision,
                plan_version=self._plan_version,
                models=routes(
                    self._deployment,
                    self._serving,
                    self._fleet.routed,
                    self._policies.ordered,
                ),
                term=self._term(),
            )
            if table != now:
                table = replace(table, revision=now.revision + 1)
                await self._publish(table)
        return table.revision

    async def _publish(self, table: RoutingTable) -> None:
        """Write the next table, and show it to subscribers."""
        try:
            await self._store.save_routing(table)
        except BaseException:
            self._routed = -1
            raise
        self.board.publish(replace(self.board.value, routing=table))

    async def _follow_nodes(self) -> None:
        """Update the table for the nodes whose routes have changed since it was made."""
        async with self._publishing:
            nodes, now = self._fleet.rerouted(self._routed), self.board.value.routing
            if nodes is not None:
                if self._places is None or not self._places.are_of(now):
                    self._places = Places(now, self._serving)
                routed = self._fleet.routed_revision
                table = self._places.moved({name: self._fleet.routed(name) for name in nodes})
                if table is not None:
                    self._routed = routed
                    if table is not now:
                        await self._publish(table)
                    return
        await self.refresh()

    async def follow(self, changed: ChangeEvent) -> None:
        """Keep table and conditions up to date, for ever; changes in between are sent together."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_conditions(changed), name="planner.conditions")
            await self._follow_routes(changed)

    async def _follow_routes(self, changed: ChangeEvent) -> None:
        backoff, pacing = Backoff(), Pacing(RealClock())
        while True:
            seen, began_s = changed.count, time.thread_time()
            try:
                if self._routed != self._fleet.routed_revision:
                    await self._follow_nodes()
            except (
                Unavailable
            ) as error:  # the last table stands: subscribers see only what is stored
                _log.warning("the routing table was not written", error=error.message)
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()
                await asyncio.sleep(pacing.pause_s(time.thread_time() - began_s))
                await changed.after(seen)

    async def _follow_conditions(self, changed: ChangeEvent) -> None:
        while True:
            seen, conditions = changed.count, self.conditions()
            _note_nodes(self._fleet)
            models = self._deployment.models.values()
            prometheus.PLANNED_MODELS.set(sum(not each.servers for each in models))
            if conditions != self.board.value.conditions:
                self.board.publish(replace(self.board.value, conditions=_noted(conditions)))
                nodes = len(self._fleet.settings)
                await asyncio.sleep(min(nodes * _CONDITIONS_PAUSE_S, _MAX_PAUSE_S))
            await changed.after(seen, _LOOK_S)


def _note(plan: Plan) -> None:
    """Set a plan's metrics: its state, and of an active one its load, empty GPUs and shortage."""
    if plan.state is not PlanState.SUPERSEDED:
        for state in PlanState:
            prometheus.PLAN_STATE.labels(state.name.lower()).set(state is plan.state)
    if plan.state is PlanState.ACTIVE:
        _note_promises(plan)
        prometheus.PARKED_GPUS.set(len(plan.prediction.parked_gpus))
        prometheus.PARKED_POWER.set(plan.prediction.parked_power_w)
        prometheus.EMPTY_NODE.clear()
        for node in plan.prediction.empty_nodes:
            prometheus.EMPTY_NODE.labels(node).set(1)
        prometheus.WANTED_GPUS.clear()
        for gpu, count in plan.prediction.wanted_gpus.items():
            prometheus.WANTED_GPUS.labels(gpu).set(count)


def _note_promises(plan: Plan) -> None:
    inputs, prediction = plan.inputs, plan.prediction
    prometheus.PLAN_POWER.set(prediction.power_w)
    prometheus.PLAN_CARBON.set(prediction.carbon_gco2e_per_h)
    for gauge in (prometheus.PLAN_GAP, prometheus.DEMAND_EXPECTED, prometheus.DEMAND_PROVIDED):
        gauge.clear()
    if prediction.gap is not None:
        prometheus.PLAN_GAP.labels(plan.strategy).set(prediction.gap)
    for model, demand_rps in inputs.demand_rps.items():
        forecast = inputs.load_forecast.get(model)
        expected_rps = demand_rps if forecast is None else forecast.mean_rps
        prometheus.DEMAND_EXPECTED.labels(model).set(expected_rps)
        unserved_rps = prediction.unserved_rps.get(model, 0.0)
        prometheus.DEMAND_PROVIDED.labels(model).set(demand_rps - unserved_rps)


def _note_nodes(fleet: Fleet) -> None:
    """Set the number of nodes by state; every state has a sample."""
    cordoned, states = fleet.cordoned(), Counter[str]()
    for name in fleet.settings:
        up = "cordoned" if name in cordoned else "connected"
        states[up if fleet.connected(name) else "away"] += 1
    for state in ("connected", "cordoned", "away"):
        prometheus.NODES.labels(state).set(states[state])


def _noted(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Set the conditions' metrics, and return the conditions."""
    prometheus.CONDITION.clear()
    for each in conditions:
        prometheus.CONDITION.labels(each.kind.name, each.subject, each.setting).set(1)
    return conditions


def _of_nodes(table: RoutingTable, planned: Mapping[str, PlannedSegment]) -> dict[str, NodeRoutes]:
    """Return the agents' reports, by node, behind a table.

    Args:
        table: The table.
        planned: Segments that it may name, by id.
    """
    pues: dict[str, float] = {}
    powers: dict[str, dict[str, GpuPower]] = {}
    endpoints: dict[str, dict[str, tuple[str, ...]]] = {}
    for model in table.models:
        for each in model.instances:
            if (segment := planned.get(each.segment_id)) is None:
                continue
            pues[segment.node] = each.pue
            power = GpuPower(each.gpu_idle_power_w, each.power_limit_w)
            powers.setdefault(segment.node, {})[segment.spec.gpu_uuid] = power
            found = endpoints.setdefault(segment.node, {})
            found[each.segment_id] = (*found.get(each.segment_id, ()), each.endpoint)
    return {name: NodeRoutes(found, pues[name], powers[name]) for name, found in endpoints.items()}
