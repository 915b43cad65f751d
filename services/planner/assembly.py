"""Construction of all objects of the planner."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Final

from cinquefoil.planner.v1.records import GridEvent
from services.kit.clock import RealClock
from services.kit.kubernetes import Cluster
from services.planner.adapters.agent_sessions import AgentSessions
from services.planner.adapters.router_sessions import RouterSessions
from services.planner.adapters.store import Store
from services.planner.change_event import ChangeEvent
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.control.carbon_budgets import LiveCarbonBudgets
from services.planner.control.counterfactual import Counterfactual
from services.planner.control.deployment_in_force import DeploymentChanges, InForce
from services.planner.control.energy_prices import LiveEnergyPrices
from services.planner.control.fleet_sites import site_of
from services.planner.control.grid_events import LiveGridEvents
from services.planner.control.grid_memory import GridMemory
from services.planner.control.history import History
from services.planner.control.leading import Leading
from services.planner.control.live_environment import LiveEnvironment
from services.planner.control.membership import Membership
from services.planner.control.openadr import follow_all
from services.planner.control.publisher import Publisher
from services.planner.control.queries import Queries
from services.planner.control.reconciler import Reconciler
from services.planner.control.regions import Regions
from services.planner.control.serving_policies import ServingPolicies
from services.planner.control.site_power import SitePower
from services.planner.control.waiting_releases import WaitingReleases
from services.planner.control.wanted_replicas import WantedReplicas
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.conditions import cluster_conditions
from services.planner.core.cycle.waiting_work import WaitingWork
from services.planner.kubernetes.model_objects import ModelObjects
from services.planner.kubernetes.parked_nodes import ParkedNodes
from services.planner.kubernetes.scaled_servers import ScaledServers

_MAX_WAITING: Final = 64
"""Most grid events from the broker that wait."""


class Planner:
    """All objects of a leading planner.

    Args:
        now: The deployment in force.
        store: The open database.
    """

    def __init__(self, now: InForce, store: Store) -> None:
        deployment, clock = now.deployment, RealClock()
        self.settings = settings = deployment.planner
        self.store = store
        self.zones = deployment.node_zones
        self.leading = Leading(store, clock, steps_down=settings.standby)
        self.state = state = ClusterState.of(deployment, now.models, clock, ChangeEvent())
        self.grid_memory = GridMemory(store, clock, state, self.zones)
        self.history = History(store, clock, state)
        accounting = settings.accounting
        self.account_writer = account_writer = AccountingWriter(
            store,
            clock,
            partial(site_of, state, accounting.embodied),
            state.level.aims,
            timedelta(days=accounting.retention_d),
            self.history.meter,
        )
        self.counterfactual = Counterfactual(state, account_writer.rate)
        self.policies = ServingPolicies(deployment, store)
        self.publisher = Publisher(
            deployment,
            store,
            state.fleet,
            self.policies,
            lambda: (
                *cluster_conditions(state),
                *self.reconciler.standing.conditions(state),
                *self.grid_events.conditions.values(),
                *self.site_power.conditions(),
                *self.energy_prices.conditions(),
                *self.carbon_budgets.conditions(),
            ),
            lambda: store.leadership.lease.term,
        )
        self.energy_prices = LiveEnergyPrices(deployment.grid, state, clock)
        self.agents = AgentSessions(state, account_writer.book)
        self.grid = deployment.grid
        self.mqtt_events = asyncio.Queue[GridEvent](_MAX_WAITING) if self.grid.mqtt else None
        self.grid_events = LiveGridEvents(
            store, clock, state, self.history, deployment.grid, self.agents.devices_w
        )
        account_writer.collect = self.agents.book
        account_writer.collect_each = self.agents.book_each
        state.before_intensity = self.agents.book_all
        self.membership = Membership(
            state,
            store,
            clock,
            account_writer,
            self.zones,
            self.agents.forget,
            local=deployment.tls is None and not (deployment.access and deployment.access.insecure),
        )
        self.routers = RouterSessions(state, self.agents.give_up)
        environment = LiveEnvironment(
            store, account_writer, self.publisher, self.agents, self.routers, self.leading
        )
        self.reconciler = Reconciler(state, environment, account_writer, self.publisher)
        work = WaitingWork(state, lambda: self.publisher.shares)
        self.waiting = WaitingReleases(work, store, self.publisher)
        self.site_power = SitePower(state, self.agents, self.waiting.hold)
        self.replicas = WantedReplicas(state, self.routers)
        self.carbon_budgets = LiveCarbonBudgets(
            store, clock, state, lambda: account_writer.total.carbon_gco2e
        )
        regions = deployment.regions
        region = regions.name if regions else ""
        self.queries = Queries(state, store, account_writer, self.reconciler, work, region)
        self.regions = (
            Regions(deployment, state, self.publisher, self.grid_events.sites, work)
            if regions
            else None
        )
        self.changes = DeploymentChanges(now, store, clock, self.use)

    async def restore(self) -> None:
        """Restore the state from before a restart."""
        await self.membership.restore()
        await self.grid_memory.restore()
        await self.reconciler.restore()
        await self.history.restore()
        await self.grid_events.restore()
        await self.carbon_budgets.restore()
        await self.waiting.restore()
        if self.publisher.board.value.plan is not None:
            self.routers.expect()

    async def follow_mqtt(self) -> None:
        """Take in grid events from the broker, for ever."""
        if self.mqtt_events is not None:
            await self.grid_events.take(self.mqtt_events, "mqtt")

    async def follow_openadr(self) -> None:
        """Follow the OpenADR servers of the deployment file, for ever."""
        prices = self.energy_prices.announced
        await follow_all(self.grid.openadr, self.grid, self.grid_events, prices, RealClock())

    async def follow_kubernetes(self) -> None:
        """Do at the API server of Kubernetes what the deployment file says, for ever."""
        settings, state, clock = self.settings.kubernetes, self.state, RealClock()
        scales = any(pool.scale for model in state.models for pool in model.servers.values())
        if settings is None and not scales:
            return
        async with (
            Cluster.reached("planner.kubernetes and scale", "planner.kubernetes") as cluster,
            asyncio.TaskGroup() as tasks,
        ):
            scaled = ScaledServers(cluster, state, self.replicas, clock)
            tasks.create_task(scaled.keep(), name="planner.scale")
            if settings and (name := settings.models_map):
                objects = ModelObjects(
                    cluster, name, self.changes, self.publisher, self.routers, self.store, clock
                )
                tasks.create_task(objects.keep(), name="planner.models")
            if settings and settings.parked_nodes:
                nodes = ParkedNodes(cluster, state, self.publisher, clock)
                tasks.create_task(nodes.keep(), name="planner.parked_nodes")

    def use(self, now: InForce, principal: str) -> None:
        """Apply a changed deployment to all its users."""
        self.agents.book_all()  # a removed node has no site to book at
        self.state.configure(now.deployment, now.models, principal)
        self.policies.use(now.deployment)
        self.publisher.use(now.deployment)
