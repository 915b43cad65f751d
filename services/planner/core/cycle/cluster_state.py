"""The cluster as reported by agents, routers and the carbon service."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1.records import LoadForecast
from services.kit.config import CarbonBudget, Deployment, Objective
from services.kit.config import Planner as Settings
from services.kit.errors import FailedPrecondition
from services.planner.core.accuracy_mean.control import AccuracyControl, Usual, period_h
from services.planner.core.accuracy_mean.ledger import AccuracyLedger
from services.planner.core.carbon_budget.control import CarbonBudgetControl
from services.planner.core.carbon_budget.sites import part_of_sites
from services.planner.core.cycle.environment import ChangeEvent, Clock
from services.planner.core.decide import Snapshot
from services.planner.core.energy_prices.course import EnergyPrices, PriceStep
from services.planner.core.fixed_inputs import FixedInputs, fixed_inputs
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.boot_times import BootTimes
from services.planner.core.forecast.burstiness import Burstiness
from services.planner.core.forecast.demand import ConfiguredLoad, Demand
from services.planner.core.forecast.text_lengths import (
    TextLength,
    TextLengths,
    stated,
    with_lengths,
)
from services.planner.core.grid_signal import GridSignal, LastIntensity, assumed_gco2e_per_kwh
from services.planner.core.load_report import LoadReport
from services.planner.core.model import Gpu, Model, Period, Variant, variants_of
from services.planner.core.online_search.answered_requests import AnsweredRequests
from services.planner.core.online_search.corrected_profile import corrected
from services.planner.core.online_search.measurement import CounterReadings, Reading
from services.planner.core.online_search.profile_corrections import Beliefs
from services.planner.core.power.budgets import PowerBudget, PowerBudgets
from services.planner.core.power.site_limits import SiteLimits
from services.planner.core.service_level import ServiceLevel, ServiceTarget
from services.planner.core.strategies import BY_OBJECTIVE
from services.planner.core.triggers import Kind, Trigger
from services.planner.core.unreached import Unreached
from services.planner.core.variant_blocklist import VariantBlocklist, absent_variants, offered
from services.planner.core.waiting.grid_outlook import OUTLOOK_S, GridOutlook
from services.planner.core.waiting.singles import Singles

_GRID_AWAITED_S: Final = 5.0
"""Time after the first node joined in which the intensity of a zone is awaited that was never
known: the carbon service may still be starting."""

_PLAN_AHEAD_S: Final = 60.0
"""Time that a plan is made before a power budget begins, beside that of its servers' starts, s."""

_MOST_AHEAD_S: Final = 1800.0

_PRICED_WEIGHT: Final = 0.5
"""Weight of carbon where accuracy has a price in carbon: any would lead to the same plan."""

_LEAST_WEIGHT: Final = 0.01
"""Least weight of carbon where some models' accuracy has a price: without any it counts nothing."""


@dataclass(slots=True)
class ClusterState:
    """State from reports; `changed` is notified after every change.

    Attributes:
        clock: Source of time.
        changed: Wakes tasks that wait for a change.
        models: The deployment's models, with profiles corrected by measurements.
        fleet: Nodes, from their agents' reports.
        demand: Load, from the routers' reports.
        boots: Times that workers take to start, from rollouts.
        level: Latency and accuracy of answers, from the routers' reports.
        objective: The objective in force.
        strategy: Name of the strategy in force.
        objective_by: Identity of the operator who ordered both; "": unknown.
        intensity_gco2e_per_kwh: Intensity by zone, from the carbon service.
        assumed_gco2e_per_kwh: Intensity by zone, to plan with while none is known.
        provenance: Provenance of the intensity by zone.
        signal: Age and recent range of the intensities.
        forecast: Intensity in the coming periods by zone, from the carbon service.
        blocklist: Variants that agents gave up on.
        unreached: Segments that no router reaches.
        readings: Work counters of agents and routers.
        fixed: Settings that plans depend on.
        beliefs: Corrections of the profiles from live measurements.
        profiled: The models with uncorrected profiles for texts of the usual lengths.
        deployed: The models with the profiles of the deployment; empty: `models`.
        lengths: Usual lengths of texts, from the routers' reports.
        burstiness: Dispersion of the load, from the routers' reports.
        removed: Variants that a change at run time removed from the deployment, by model: they may
            still run.
        settings: The planner's settings; objective and strategy in them are the deployment's.
        accuracy: Keeps the promised mean accuracy over a period.
        grid: Forecasts of the coming hours, for waiting work.
        singles: Waiting requests that are of no batch, from the routers' reports.
        due_rps: Load that stands for the replicas that waiting work needs, by model, req/s.
        power: Power budgets of sites, in time.
        prices: Electricity prices, in time.
        carbon: Keeps carbon budgets.
        before_intensity: Called before intensities change, to book energy at the old ones.
        of_nodes: Conditions of the nodes, and their zones, at a revision of the fleet.
        silent: Returns the nodes whose agents have fallen silent, though their streams are open.
    """

    clock: Clock
    changed: ChangeEvent
    models: tuple[Model, ...]
    fleet: Fleet
    demand: Demand
    level: ServiceLevel
    objective: Objective
    strategy: str
    intensity_gco2e_per_kwh: dict[str, float] = field(default_factory=dict)
    assumed_gco2e_per_kwh: Mapping[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    signal: GridSignal = field(default_factory=GridSignal)
    forecast: tuple[Period, ...] = ()
    blocklist: VariantBlocklist = field(default_factory=VariantBlocklist)
    unreached: Unreached = field(default_factory=Unreached)
    readings: CounterReadings = field(default_factory=CounterReadings)
    fixed: FixedInputs = field(default_factory=dict)
    beliefs: Beliefs = field(default_factory=Beliefs)
    profiled: tuple[Model, ...] = ()
    deployed: tuple[Model, ...] = ()
    lengths: TextLengths = field(default_factory=TextLengths)
    burstiness: Burstiness = field(default_factory=lambda: Burstiness({}))
    objective_by: str = ""
    removed: tuple[Model, ...] = ()
    settings: Settings = field(default_factory=Settings)
    boots: BootTimes = field(default_factory=lambda: BootTimes(()))
    accuracy: AccuracyControl = field(
        default_factory=lambda: AccuracyControl(AccuracyLedger(period_h(None)))
    )
    power: PowerBudgets = field(default_factory=PowerBudgets)
    prices: EnergyPrices = field(default_factory=EnergyPrices)
    carbon: CarbonBudgetControl = field(init=False)
    carbon_away: bool = False
    grid: GridOutlook = field(default_factory=GridOutlook)
    singles: Singles = field(default_factory=Singles)
    due_rps: Mapping[str, float] = field(default_factory=dict)
    before_intensity: Callable[[], None] = lambda: None
    of_nodes: tuple[int, tuple[Condition, ...], tuple[str, ...]] = (-1, (), ())
    silent: Callable[[], Iterable[str]] = tuple

    def __post_init__(self) -> None:
        self.deployed = self.deployed or self.models
        self.profiled = self.profiled or self.deployed
        self.accuracy.configure(self.objective.accuracy_mean)
        budgets = self.settings.carbon_budgets
        self.accuracy.budgeted = bool(budgets)
        self.carbon = CarbonBudgetControl(self.accuracy, budgets, part=self._part_of_sites)

    @classmethod
    def of(
        cls, deployment: Deployment, models: tuple[Model, ...], clock: Clock, changed: ChangeEvent
    ) -> ClusterState:
        """Return the state before the first report.

        Args:
            deployment: The deployment.
            models: Its models, with their profiles.
            clock: Source of time.
            changed: Wakes tasks that wait for a change.
        """
        planner = deployment.planner
        configured = {name: ConfiguredLoad.of(each) for name, each in deployment.models.items()}
        fleet = Fleet(deployment.nodes, planner.triggers.settle_s, deployment.join)
        fleet.configure_sites(deployment.sites)
        readings = CounterReadings()
        boots = BootTimes(models)
        return cls(
            clock,
            changed,
            models,
            fleet,
            Demand(
                configured,
                planner.load_forecast,
                lambda: clock.now().timestamp(),
                planner.triggers.scale_down_s,
                bursts_apart={model.name for model in models if stated(model)},
                answered=AnsweredRequests(readings, fleet.segments),
                boot_s=boots.longest_s,
            ),
            ServiceLevel(aims(deployment), planner.triggers.answers_settle_s),
            planner.objective,
            planner.strategy,
            assumed_gco2e_per_kwh={
                name: assumed_gco2e_per_kwh(zone) for name, zone in deployment.carbon.zones.items()
            },
            signal=GridSignal(planner.triggers.intensity_dwell_s, deployment.carbon.replay.speedup),
            readings=readings,
            fixed=fixed_inputs(models, planner, planner.objective),
            settings=planner,
            burstiness=Burstiness(
                {model.name: model.dispersion for model in models},
                lambda: clock.now().timestamp(),
            ),
            boots=boots,
            grid=GridOutlook(
                deployment.carbon.replay.speedup,
                OUTLOOK_S if deployment.batch or deployment.regions else 0.0,
            ),
            power=PowerBudgets(deployment.sites),
            prices=EnergyPrices(
                {
                    zone: (PriceStep(0.0, math.inf, each.eur_per_kwh),)
                    for zone, each in deployment.grid.prices.items()
                    if each.kind == "static"
                }
            ),
            accuracy=AccuracyControl(
                AccuracyLedger(period_h(None), speedup=deployment.carbon.replay.speedup)
            ),
        )

    def configure(
        self, deployment: Deployment, models: tuple[Model, ...], principal: str = ""
    ) -> None:
        """Apply changed models, nodes, objective and strategy; reports are kept.

        An objective or strategy ordered by operators is kept as well, unless the deployment's has
        changed.

        Args:
            deployment: The changed deployment.
            models: Its models, with their profiles.
            principal: Identity of the operator who ordered it; "": the file did.
        """
        before, now = self.settings, deployment.planner
        if now.objective != before.objective:
            self.objective, self.objective_by = now.objective, principal
        if now.strategy != before.strategy:
            self.strategy, self.objective_by = now.strategy, principal
        update = {"objective": now.objective, "strategy": now.strategy}
        self.settings = before.model_copy(update=update)
        self.removed = _removed((*self.removed, *self.profiled), models)
        self.deployed = models
        self._lengthen()
        self.fleet.configure(deployment.nodes, deployment.join)
        self.fleet.configure_sites(deployment.sites)
        self.power.sites = deployment.sites
        self.demand.configure(
            {name: ConfiguredLoad.of(model) for name, model in deployment.models.items()}
        )
        self.burstiness.configure({model.name: model.dispersion for model in models})
        self.boots.configure(models)
        self.level.configure(aims(deployment))
        self.fixed = fixed_inputs(models, self.settings, self.objective)
        self.accuracy.configure(self.objective.accuracy_mean)
        self.changed.notify()

    def reconfigured(
        self, now: Snapshot, deployment: Deployment, models: tuple[Model, ...]
    ) -> Snapshot:
        """Return a snapshot as it would be after `configure`, with the observed load."""
        planner, demand_rps = deployment.planner, {m.name: m.demand_rps for m in now.models}
        configured_rps = {m.name: m.demand_rps for m in self.profiled}

        def load_rps(model: Model) -> float:
            known_rps = demand_rps.get(model.name, 0.0)
            seen = known_rps > configured_rps.get(model.name, 0.0)
            return max(model.demand_rps, known_rps if seen else 0.0)

        lengths = self.lengths
        same = planner.objective == self.settings.objective
        objective = now.objective if same else planner.objective
        same = planner.strategy == self.settings.strategy
        strategy = now.strategy if same else planner.strategy
        return replace(
            now,
            models=tuple(
                replace(
                    model,
                    demand_rps=load_rps(model),
                    dispersion=now.dispersion.get(model.name, model.dispersion),
                )
                for model in self._offered(now, models, lengths.planned, lengths.promised)
            ),
            parked=(),
            objective=objective,
            strategy=strategy,
            accuracy_price=self.accuracy_price_of(objective, strategy),
        )

    def with_texts(
        self,
        now: Snapshot,
        usual: Mapping[str, TextLength],
        promised: Mapping[str, TextLength],
    ) -> Snapshot:
        """Return a snapshot for observed usual lengths of texts; see `with_lengths`."""
        seen = [model for model in self.deployed if model.name in usual]
        return replace(now, models=self._offered(now, seen, usual, promised))

    def _offered(
        self,
        now: Snapshot,
        models: Iterable[Model],
        usual: Mapping[str, TextLength],
        promised: Mapping[str, TextLength],
    ) -> tuple[Model, ...]:
        planned = [model for model in models if not model.servers]
        believed = corrected(with_lengths(planned, usual, promised), self.beliefs)
        return offered(believed, now.blocked, now.absent)

    def _lengthen(self) -> None:
        """Plan for texts of the usual lengths from now on."""
        self.profiled = with_lengths(self.deployed, self.lengths.planned, self.lengths.promised)
        self.believe(self.beliefs)

    # ---- reports -------------------------------------------------------------------------------

    def set_objective(
        self, carbon_weight: float | None, strategy: str | None, principal: str = ""
    ) -> None:
        """Change the given parts of the objective; `principal`: the operator, or "".

        A weight of carbon takes the place of a mean accuracy, and of costs.
        """
        if carbon_weight is not None:
            update = {"carbon_weight": carbon_weight, "accuracy_mean": None, "kind": "clover"}
            self.objective = self.objective.model_copy(update=update)
            self.accuracy.configure(None)
            self.fixed = fixed_inputs(self.deployed, self.settings, self.objective)
        self.strategy = strategy or self.strategy
        self.objective_by = principal
        self.changed.notify()

    def update_intensity(
        self,
        intensity_gco2e_per_kwh: Mapping[str, float],
        staleness_s: Mapping[str, float] | None = None,
        provenance: Mapping[str, str] | None = None,
    ) -> None:
        """Record intensities by zone, with their age in grid time and their provenance."""
        self.before_intensity()
        self.carbon_away = False
        self.provenance.update(provenance or {})
        self.intensity_gco2e_per_kwh.update(intensity_gco2e_per_kwh)
        self.signal.hear(intensity_gco2e_per_kwh, staleness_s or {}, self.clock.monotonic())
        self.accuracy.ledger.hold(self._now_s(), intensity=self.intensity_gco2e_per_kwh)
        self.changed.notify()

    def recall_intensity(self, last: Mapping[str, LastIntensity]) -> None:
        """Continue with the intensities that the planner before this one heard, until others come.

        Args:
            last: Intensities by zone.
        """
        now, now_s = self.clock.now(), self.clock.monotonic()
        for zone, each in last.items():
            self.intensity_gco2e_per_kwh[zone] = each.intensity_gco2e_per_kwh
            self.provenance[zone] = "held"
            self.signal.recall(zone, now_s - max((now - each.since).total_seconds(), 0.0))
        self.carbon_away = bool(last)
        self.changed.notify()

    def lose_carbon(self) -> None:
        """Record that the carbon service is gone: the last intensities hold, and age."""
        if not self.carbon_away:
            self.carbon_away = True
            self.changed.notify()

    def update_forecast(self, periods: tuple[Period, ...]) -> None:
        """Record the expected intensities, the current period first.

        Nothing is notified: a forecast alone triggers no decision.
        """
        self.forecast = periods

    def update_load(self, report: LoadReport) -> None:
        """Add a router's report."""
        self.demand.observe(report.router_id, report.arrivals, report.window_s)
        self.burstiness.observe(report.router_id, report.first_second, report.arrivals_per_s)
        self.level.observe(report.late, report.by_variant, self.clock.monotonic(), report.refused)
        self.accuracy.ledger.answer(
            self._now_s(),
            {name: max(n - report.refused.get(name, 0), 0) for name, n in report.arrivals.items()},
            self.level.accuracies(report.by_variant),
        )
        answers = {model: sum(each.values()) for model, each in report.by_variant.items()}
        for model, latency_s in report.latency_s.items():
            self.readings.answered(model, answers.get(model, 0), latency_s)
        self.singles.observe(report.router_id, report.waiting, self.clock.now())
        tokens = {model: (each.input, each.output) for model, each in report.tokens.items()}
        squares = {model: each.input_squares for model, each in report.tokens.items()}
        if self.lengths.observe(report.router_id, tokens, answers, self.deployed, squares):
            self._lengthen()
        self.changed.notify()

    def set_power_events(self, events: Iterable[PowerBudget]) -> None:
        """Replace the budgets of grid events, of now and later; plans and agents follow.

        Raises:
            ValueError: There are too many, or a limit is no power.
        """
        if self.power.set_events(events):
            self.changed.notify()

    def power_ahead(self) -> timedelta:
        """Return how long before a power budget begins plans keep it.

        A plan takes a search, and a rollout that may start servers.
        """
        boot_s = max((self.boots.longest_s(model.name) for model in self.models), default=0.0)
        return timedelta(seconds=min(_PLAN_AHEAD_S + boot_s, _MOST_AHEAD_S))

    def need_more(self, models: Iterable[str], why: str) -> None:
        """Record that an agent's GPU cannot serve these models any faster."""
        self.level.need_more(models, why)
        self.changed.notify()

    # ---- queries -------------------------------------------------------------------------------

    def demand_rps(self) -> dict[str, float]:
        """Return the load to provide for, by model, req/s.

        It is more if requests were late, and where waiting work must have replicas.
        """
        rates_rps = self.level.provided_rps(self.demand.rates_rps(), self.clock.monotonic())
        return {name: rps + self.due_rps.get(name, 0.0) for name, rps in rates_rps.items()}

    def reading(self) -> Reading:
        """Return the current values of all counters."""
        return self.readings.reading(self.clock.monotonic())

    def last_intensities(self) -> dict[str, LastIntensity]:
        """Return the known intensities as a later planner may use them."""
        now, ages_s = self.clock.now(), self.signal.ages_s(self.clock.monotonic())
        return {
            zone: LastIntensity(intensity, now - timedelta(seconds=ages_s[zone]))
            for zone, intensity in self.intensity_gco2e_per_kwh.items()
        }

    def intensity_for_plans(self) -> Mapping[str, float]:
        """Return the intensity to plan with by zone: the known one, or after a while the assumed.

        The account waits for the known one.
        """
        if self._grid_awaited_s(self.clock.monotonic()) > 0:
            return self.intensity_gco2e_per_kwh
        return {**self.assumed_gco2e_per_kwh, **self.intensity_gco2e_per_kwh}

    def _grid_awaited_s(self, now_s: float) -> float:
        """Return the time for which zones' first intensities are still awaited, s."""
        if self.assumed_gco2e_per_kwh.keys() <= self.intensity_gco2e_per_kwh.keys():
            return 0.0
        return max(0.0, self.fleet.first_join_s + _GRID_AWAITED_S - now_s)

    def unsettled_s(self) -> float:
        """Return the time until the state may change without a report, s."""
        now_s = self.clock.monotonic()
        return min(
            self.fleet.unsettled_s(now_s) or math.inf,
            self._grid_awaited_s(now_s) or math.inf,
            self.demand.unused_s(),
            self.power.changes_s(self.clock.now(), self.power_ahead()),
            self.prices.changes_s(self._now_s()),
            self.signal.settles_s(now_s),
        )

    def snapshot(self, shares: Mapping[str, float]) -> Snapshot | None:
        """Return the cluster, or None if planning makes no sense now.

        Planning needs GPUs, every node either connected or given up, and a model whose file some
        node has. An intensity that was never known is awaited for a moment, then assumed. Without
        any GPU the last routes stay: workers may keep serving although their agents are
        unreachable, and routers notice by themselves when they stop.

        Args:
            shares: Current share of its model's load, by segment id.
        """
        now_s = self.clock.monotonic()
        nodes = list(self.fleet.nodes(now_s))
        known = self.intensity_for_plans()
        if self.fleet.unsettled_s(now_s) > 0 or any(node.zone not in known for node in nodes):
            return None
        self.fleet.avoided = self.unreached.avoided(now_s)
        self.fleet.eur_per_kwh = self.prices.now(self._now_s())
        gpus = self.fleet.gpus(known, now_s)
        if not gpus:
            return None
        running = self.unreached.marked(run for node in nodes for run in node.segments)
        self.blocklist.learn(running, now_s)
        blocked = self.blocklist.names(now_s)
        absent = absent_variants(nodes, running)
        planned = tuple(model for model in self.models if not model.servers)
        models = offered(planned, blocked, absent)
        if not models:
            return None
        demand_rps = self.demand_rps()
        self.accuracy.ledger.hold(self._now_s(), demand_rps=demand_rps)
        borne = self.level.bears(now_s)
        served = tuple(model for model in models if demand_rps[model.name])
        leaving = self.fleet.leaving(known, now_s)
        limits = SiteLimits(
            self.power, self.fleet, gpus, self.clock.now(), now_s, self.power_ahead()
        )
        sites = limits.present
        return Snapshot(
            gpus=gpus,
            leaving=leaving,
            sites=sites,
            power_limit_w={site.name: site.limit_w for site in sites},
            models=tuple(
                replace(
                    model,
                    demand_rps=demand_rps[model.name],
                    dispersion=self.burstiness.known.get(model.name, model.dispersion),
                )
                for model in served
            ),
            parked=tuple(model for model in models if not demand_rps[model.name]),
            running=running,
            shares=shares,
            objective=self._objective(now_s),
            strategy=self.strategy,
            forecast=limits.along(
                self._priced(self._forecast({node.zone for node in nodes})), self.grid.speedup
            ),
            blocked=blocked,
            late=() if borne else self.level.late(),
            inaccurate=() if borne else self.level.inaccurate(self.objective.accuracy_floor),
            steady_gco2e_per_kwh=self.signal.ranges(now_s),
            staleness_s=self.signal.staleness_s(now_s),
            load_forecast={
                model: LoadForecast(each.expected_rps, each.low_rps, each.high_rps)
                for model, each in self.demand.forecasts().items()
            },
            fixed=self.fixed,
            removed=self.removed,
            objective_by=self.objective_by,
            unreached=self.unreached.given_up,
            cordoned=self.fleet.cordoned(),
            absent=absent,
            text_lengths=self.lengths.usual,
            dispersion=self.burstiness.known,
            accuracy_price=self._accuracy_price(),
            accuracy_so_far=self.accuracy.so_far(self._now_s()),
            boot_s=dict(self.boots.measured_s),
        )

    def usual(self, now: Snapshot) -> Usual | None:
        """Return the circumstances to find a frontier of plans for; None: none is needed."""
        if self.strategy not in BY_OBJECTIVE:
            return None
        kinds = frozenset((gpu.pool.type.name, gpu.pool.zone) for gpu in now.gpus)
        fleet = len(now.gpus), kinds
        circumstances = frozenset(self.fixed.items()), fleet, now.blocked, now.absent
        return self.accuracy.usual(circumstances, self._now_s(), now.forecast)

    def at_usual(self, now: Snapshot, usual: Usual) -> Snapshot:
        """Return a snapshot with the usual grid and load, and the floor of each moment."""
        grid = usual.intensity_gco2e_per_kwh

        def moved(gpu: Gpu) -> Gpu:
            value = grid.get(gpu.pool.zone, gpu.pool.intensity_gco2e_per_kwh)
            return replace(gpu, pool=replace(gpu.pool, intensity_gco2e_per_kwh=value))

        return replace(
            now,
            gpus=tuple(map(moved, now.gpus)),
            models=tuple(
                replace(model, demand_rps=usual.demand_rps.get(model.name, model.demand_rps))
                for model in now.models
            ),
            objective=self.objective.model_copy(update={"carbon_weight": _PRICED_WEIGHT}),
            accuracy_price={},
        )

    def refreshed(self, now: Snapshot, shares: Mapping[str, float]) -> Snapshot:
        """Return an earlier snapshot with the current fleet and running segments."""
        now_s = self.clock.monotonic()
        zones = {gpu.pool.zone: gpu.pool.intensity_gco2e_per_kwh for gpu in now.all_gpus}
        intensity = {**self.intensity_for_plans(), **zones}
        return replace(
            now,
            gpus=self.fleet.gpus(intensity, now_s),
            leaving=self.fleet.leaving(intensity, now_s),
            running=self.unreached.marked(
                run for node in self.fleet.nodes(now_s) for run in node.segments
            ),
            shares=shares,
        )

    def _objective(self, now_s: float) -> Objective:
        """Return the objective to plan with: a higher floor if answers were too inaccurate.

        Where a mean accuracy is promised and has no price, it is the floor.
        """
        objective, lift = self.objective, self.level.floor_lift(now_s)
        update: dict[str, float] = {}
        if lift:
            update["accuracy_floor"] = min(objective.accuracy_floor + lift, 1.0)
        if self.carbon.budgets and (prices := self._accuracy_price()):
            update["carbon_weight"] = self._weight_beside(prices)
        if objective.accuracy_mean is not None:
            if self._accuracy_price():
                update["carbon_weight"] = _PRICED_WEIGHT
            else:
                floor = max(objective.accuracy_mean.at_least, update.get("accuracy_floor", 0.0))
                update["accuracy_floor"] = floor
        return objective.model_copy(update=update) if update else objective

    def _accuracy_price(self) -> Mapping[str, float]:
        if self.strategy not in BY_OBJECTIVE:
            return {}
        if self.objective.kind == "cost":
            return self.accuracy_price_of(self.objective, self.strategy)
        if self.carbon.budgets:
            return self.carbon.prices(self.clock.now(), self.forecast)
        return self.accuracy.prices(self._now_s(), self.forecast)

    def accuracy_price_of(self, objective: Objective, strategy: str) -> Mapping[str, float]:
        """Return the price of accuracy under another objective or strategy, by model, gCO2e."""
        prices = self.carbon.prices(self.clock.now(), self.forecast)
        weights = (self.objective.carbon_weight, self._weight_beside(prices))
        budgeted = self.carbon.budgets and objective.carbon_weight in weights
        if budgeted and objective.accuracy_mean is None and objective.kind == "clover":
            return prices
        mean, value = objective.accuracy_mean, objective.accuracy_price_gco2e
        if value is not None and strategy in BY_OBJECTIVE:
            return {model.name: value for model in self.models}
        if mean is None or strategy not in BY_OBJECTIVE:
            return {}
        return self.accuracy.prices_for(mean.at_least, self._now_s(), self.forecast)

    def budgeted(self, now: Snapshot, budgets: Sequence[CarbonBudget]) -> Snapshot:
        """Return a snapshot with other carbon budgets.

        Raises:
            FailedPrecondition: The frontier of plans is not known.
        """
        if self.accuracy.frontier is None:
            why = "is not known: it is found minutes after the first requests, with carbon budgets"
            raise FailedPrecondition.at("carbon_budgets", f"the frontier of plans {why}")
        prices = self.carbon.prices_for(budgets, self.clock.now())
        update = {"carbon_weight": self._weight_beside(prices), "accuracy_mean": None}
        objective = now.objective.model_copy(update={**update, "kind": "clover"})
        return replace(now, objective=objective, accuracy_price=prices)

    def _weight_beside(self, prices: Mapping[str, float]) -> float:
        """Return the weight of carbon beside prices: any, unless models have none."""
        if all(model.name in prices for model in self.models):
            return _PRICED_WEIGHT
        return max(self.settings.objective.carbon_weight, _LEAST_WEIGHT)

    def _part_of_sites(self, budget: CarbonBudget) -> float:
        return part_of_sites(budget, self.fleet, self.clock.monotonic())

    def _now_s(self) -> float:
        return self.clock.now().timestamp()

    def _priced(self, periods: tuple[Period, ...]) -> tuple[Period, ...]:
        """Return the coming periods with the prices that are known for each."""
        if not self.prices.courses:
            return periods
        at_s, speedup = self._now_s(), self.grid.speedup
        zones = self.fleet.eur_per_kwh.keys()
        found: list[Period] = []
        for period in periods:
            end_s = at_s + period.length_s / speedup
            mean = self.prices.mean(at_s, end_s) if found else self.fleet.eur_per_kwh
            prices = {zone: mean.get(zone, self.fleet.eur_per_kwh[zone]) for zone in zones}
            found.append(replace(period, eur_per_kwh=prices))
            at_s = end_s
        return tuple(found)

    def _forecast(self, zones: set[str]) -> tuple[Period, ...]:
        """Return the coming periods for which the intensity of every zone is forecast."""
        return tuple(
            period for period in self.forecast if zones <= period.intensity_gco2e_per_kwh.keys()
        )

    def with_profiles(self, now: Snapshot) -> Snapshot:
        """Return a snapshot whose models have uncorrected profiles."""
        profiled = variants_of(self.profiled)
        return replace(
            now,
            models=tuple(
                replace(
                    model,
                    variants=tuple(profiled[model.name, each.name] for each in model.variants),
                )
                for model in now.models
            ),
        )

    # ---- consequences of decisions -------------------------------------------------------------

    def believe(self, beliefs: Beliefs) -> None:
        """Record the results of live measurements: plans use corrected profiles."""
        self.beliefs = beliefs
        self.models = corrected(self.profiled, beliefs)

    def settle_texts(
        self,
        usual: Mapping[str, TextLength],
        promised: Mapping[str, TextLength],
        in_time: Collection[str],
        endless: Collection[str] = (),
    ) -> bool:
        """Record the models whose usual texts are served in time; see `TextLengths.settle`."""
        changed = self.lengths.settle(usual, promised, in_time, endless)
        if changed:
            self._lengthen()
            self.changed.notify()
        return changed

    def raise_requirements(
        self, trigger: Trigger, now: Snapshot, learned: Mapping[str, str]
    ) -> tuple[Trigger, Snapshot]:
        """Raise the requirements on the next plan if an SLO is violated, so that it differs.

        Args:
            trigger: Cause of the plan.
            now: The cluster.
            learned: Models whose profile was just corrected, which suffices, with the correction.

        Returns:
            The trigger, and the snapshot with the raised requirements.
        """
        if not (now.late or now.inaccurate):
            return trigger, now
        now_s = self.clock.monotonic()
        floor = self.objective.accuracy_floor
        self.level.demand_more(self.demand.rates_rps(), floor, now_s, learned)
        demand_rps = self.demand_rps()
        models = tuple(replace(each, demand_rps=demand_rps[each.name]) for each in now.models)
        more = (
            learned.get(m.model, f"provides for {demand_rps[m.model]:.1f} req/s of {m.model}")
            for m in now.late
        )
        return (
            replace(trigger, reason="; ".join((trigger.reason, *more))),
            replace(now, models=models, objective=self._objective(now_s)),
        )

    def decided(self, trigger: Trigger, *, changed: bool) -> None:
        """Record whether a decision led to another plan, and its cause."""
        self.level.decided(
            broken=trigger.kind in (Kind.SLA, Kind.ACCURACY),
            changed=changed,
            now_s=self.clock.monotonic(),
        )


def _removed(before: Iterable[Model], now: Iterable[Model]) -> tuple[Model, ...]:
    """Return the variants that models no longer offer, without those added later."""
    offered = variants_of(now)
    found: dict[str, dict[str, Variant]] = {}
    models: dict[str, Model] = {}
    for model in before:
        models[model.name] = model
        gone = {
            each.name: each for each in model.variants if (model.name, each.name) not in offered
        }
        found.setdefault(model.name, {}).update(gone)
    return tuple(
        replace(models[name], variants=tuple(gone.values())) for name, gone in found.items() if gone
    )


def aims(deployment: Deployment) -> dict[str, ServiceTarget]:
    """Return the deployment's promises for each model."""
    return {
        name: ServiceTarget(
            late_share=1 - model.slo.percentile / 100,
            accuracies={variant: each.accuracy for variant, each in model.variants.items()},
        )
        for name, model in deployment.models.items()
    }
