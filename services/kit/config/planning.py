"""Objective of plans, the account, and settings of the planner."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import BeforeValidator, Field

from services.kit.config.kubernetes import Kubernetes
from services.kit.config.section import (
    Address,
    ClockRatio,
    Database,
    Endpoint,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Section,
)
from services.kit.segment import MOST_BATCH, some_of


class Embodied(Section):
    """Embodied carbon of the GPUs, by time and slice (sources: docs/accounting.md).

    Attributes:
        lifetime_y: Lifetime over which it is spread evenly, years.
        kgco2e: Embodied carbon of one GPU by type; other types have a published value, or none.
        in_plans: Whether plans count it for each hour that a GPU is powered, beside its operational
            carbon; with `objective.park_idle_gpus` fewer GPUs then save it.
    """

    lifetime_y: Positive = 4.0
    kgco2e: Mapping[Name, NonNegative] = Field(default_factory=dict)
    in_plans: bool = False


class Accounting(Section):
    """The account of energy and carbon, by hour, zone, node and model.

    Attributes:
        retention_d: Time for which hours are kept, days.
        embodied: Embodied carbon; `{}`: published values. None: not counted.
    """

    retention_d: Annotated[int, Field(ge=1, le=36_500)] = 400
    embodied: Embodied | None = None


Strategy = Literal[
    "annealing",
    "base",
    "co2opt",
    "exact",
    "infadapter",
    "oracle",
    "parvagpu",
    "random",
]


BatchSize = Annotated[int, Field(ge=1, le=MOST_BATCH)]
PlacementRule = Literal["least_change", "power_aware"]


class Goals(Section):
    """Weights of the goals in the objective; only their ratios matter.

    Attributes:
        clover: CLOVER's f (SC'23, Eq. 3): carbon against accuracy, percentage points.
        fewest_gpus: GPUs in use, as a percentage of the fleet (ParvaGPU). Where it is the only
            goal, ties go to fewer GPCs, then to less energy.
        infadapter: InfAdapter's Eq. 1 (EuroMLSys'23): accuracy against resources and loading.
    """

    clover: NonNegative = 1.0
    fewest_gpus: NonNegative = 0.0
    infadapter: NonNegative = 0.0

    def _problems(self) -> Iterator[str]:
        if not (self.clover or self.fewest_gpus or self.infadapter):
            yield "at least one goal must have a weight above 0"


class InfAdapter(Section):
    """InfAdapter's Eq. 1: alpha x accuracy - (beta x resources + gamma x loading).

    Attributes:
        accuracy: alpha, of the mean accuracy over all requests relative to the best variants' (1).
        resources: beta, of the compute slices in use as a share of the fleet's (1).
        loading: gamma, of the longest loading time of a changed variant, per s.
    """

    accuracy: NonNegative = 1.0
    resources: NonNegative = 0.05
    loading: NonNegative = 0.001


_LONGEST_MEAN_S: Final = 366 * 86_400.0


class AccuracyMean(Section):
    """Mean accuracy that plans keep over a period, with the least carbon.

    Attributes:
        at_least: Mean of each model over its answers, relative to its best variant, 0..1.
        over: Period, in days ("28d") or hours ("36h") of grid time; periods follow one another.
    """

    at_least: Annotated[float, Field(gt=0, le=1)]
    over: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}[dh]$")] = "28d"

    @property
    def over_s(self) -> float:
        """Length of the period, s."""
        return int(self.over[:-1]) * (86_400.0 if self.over.endswith("d") else 3600.0)

    def _problems(self) -> Iterator[str]:
        if self.over_s > _LONGEST_MEAN_S:
            yield f"over: must be at most 366d, got {self.over}"


_USUAL_EUR_PER_KWH: Final = 0.2


MAX_BUDGETS: Final = 8


class CarbonBudget(Section):
    """Emissions in each period, kept with the best accuracy (docs/carbon-budgets.md).

    Of the fleet, or of what `models` or `sites` say.

    Attributes:
        kg: Operational carbon of GPUs in a period, PUE included, kgCO2e.
        per: Period of the calendar, UTC; weeks begin on Monday.
        at_end: Where it is used up before: "smallest": only the least accurate plans run, above
            `accuracy_floor`; "hold_waiting": also, requests that can wait do; "exceed": plans go on
            at the budget's even rate. All are a condition.
        models: Models whose requests count, with their share of what GPUs draw without work; their
            accuracy alone gives way.
        sites: Sites whose GPUs count.
    """

    kg: Annotated[float, Field(gt=0, le=1e9)]
    per: Literal["day", "week", "month", "year"]
    at_end: Literal["smallest", "hold_waiting", "exceed"] = "smallest"
    models: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    sites: Annotated[tuple[str, ...], Field(max_length=256)] = ()

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.models and self.sites:
            yield "sites: a budget is of models or of sites; make two of it"


def budget_problems(
    budgets: Sequence[CarbonBudget], models: Collection[str], sites: Collection[str]
) -> Iterator[str]:
    """Yield names of carbon budgets that the deployment lacks, as "key: sentence"."""
    for n, each in enumerate(budgets):
        for what, named, known in (("models", each.models, models), ("sites", each.sites, sites)):
            for name in [name for name in named if name not in known]:
                there = f"{name!r}; there is {some_of(known) if known else 'none'}"
                yield f"planner.carbon_budgets.{n}.{what}: no {what[:-1]} {there}"


class Objective(Section):
    """Objective of plans (CLOVER Eq. 1-3, unless `goals` say otherwise).

    Attributes:
        kind: "clover", or "cost": the least cost in money, of energy (`grid.prices`) and of carbon,
            with accuracy at its value. `carbon_weight` is then without effect.
        carbon_price_eur_per_t: Price of emissions with kind cost, EUR/t.
        accuracy_value_eur: Value of a percentage point of accuracy (relative to the best variant)
            in a thousand requests, EUR; needed with kind cost.
        goals: Weights of the goals.
        infadapter: Weights within the goal of that name.
        carbon_weight: CLOVER's lambda, 0 (accuracy only) .. 1 (carbon only); without effect beside
            `accuracy_mean`.
        baseline_intensity_gco2e_per_kwh: Intensity in C_base; the reference that makes carbon
            differences relative. It scales the objective, not the set of plans.
        accuracy_floor: Minimum mean accuracy of a model at each moment, relative to its best
            variant, 0..1.
        accuracy_mean: Mean accuracy over a period, kept with the least carbon. None: lambda says
            what accuracy is worth.
        latency_share: theta: maximum batch latency as a share of the SLO; the rest is for waiting
            (ParvaGPU section IV-A uses 0.5).
        max_utilisation: rho: maximum used share of a segment's throughput.
        latency_rule: What a plan promises: "percentile", the SLO's percentile of latencies with
            requests that come at random (CLOVER Eq. 5), or only "batch", that a batch takes at
            most theta x SLO (ParvaGPU), as with requests at even intervals.
        switch_price: Price of replacing a segment in objective points, per segment and GPU. A
            change must gain its price within one hour of grid time. A plan without a horizon
            assumes that the next hour is like the present. The energy of a start is added.
        layout_price: Price of creating or destroying a slice in objective points, per slice and
            GPU, as `switch_price`.
        park_idle_gpus: Whether only GPUs that serve count with their idle power (consolidation).
        host_idle_w: Power that a node's host draws while its GPUs are powered, W. Plans count it
            evenly over them; with `park_idle_gpus` fewer GPUs save it. The account leaves it out.
        overload: What comes first where the fleet cannot serve all: "fair", that no model is
            served a smaller share of its demand than it must, or "most", that most requests are.
            Both weigh models by `models.<m>.overload_weight`.
    """

    kind: Literal["clover", "cost"] = "clover"
    carbon_price_eur_per_t: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    accuracy_value_eur: Annotated[float, Field(gt=0, le=1e6)] | None = None
    goals: Goals = Goals()
    infadapter: InfAdapter = InfAdapter()
    carbon_weight: Fraction = 0.5
    baseline_intensity_gco2e_per_kwh: Positive = 207.13
    accuracy_floor: Fraction = 0.0
    accuracy_mean: AccuracyMean | None = None
    latency_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    max_utilisation: Annotated[float, Field(gt=0, le=1)] = 0.7
    latency_rule: Literal["batch", "percentile"] = "percentile"
    switch_price: Annotated[float, Field(ge=0)] = 0.02
    layout_price: Annotated[float, Field(ge=0)] = 0.02
    park_idle_gpus: bool = False
    host_idle_w: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    overload: Literal["fair", "most"] = "fair"

    @property
    def accuracy_price_gco2e(self) -> float | None:
        """Worth of a point of a request's accuracy with kind cost; None: another kind.

        In the grams that plans count for money: `eur_per_counted_gram` each.
        """
        if self.kind != "cost" or self.accuracy_value_eur is None:
            return None
        return 1e-3 * self.accuracy_value_eur / self.eur_per_counted_gram

    @property
    def eur_per_counted_gram(self) -> float:
        """Money that counts like a gram of carbon with kind cost, EUR; any leads to the same plan.

        A kWh at the baseline intensity counts like a fifth of a euro.
        """
        return _USUAL_EUR_PER_KWH / self.baseline_intensity_gco2e_per_kwh

    @property
    def weight_of_carbon(self) -> float:
        """Weight of carbon against accuracy in force; of costs, any leads to the same plan."""
        return 0.5 if self.kind == "cost" else self.carbon_weight

    def _problems(self) -> Iterator[str]:
        mean = self.accuracy_mean
        if self.kind == "cost":
            if self.accuracy_value_eur is None:
                yield "accuracy_value_eur: needed with kind cost: the worth of a point of accuracy"
            if mean is not None:
                yield "accuracy_mean: with kind cost accuracy_value_eur says what accuracy is worth"
            if not self.goals.clover:
                yield "kind: cost needs the goal clover, whose weight is 0 (goals)"
        if mean is not None and mean.at_least < self.accuracy_floor:
            yield (
                f"accuracy_mean: at_least must be at least accuracy_floor ({self.accuracy_floor:g})"
                f", got {mean.at_least:g}"
            )
        if mean is not None and not self.goals.clover:
            yield "accuracy_mean: needs the goal clover, whose weight is 0 (goals)"


class Triggers(Section):
    """When to re-plan.

    Attributes:
        intensity_change: Relative change of a zone's intensity since the last plan (CLOVER: 5 %).
        intensity_dwell_s: Time for which the intensity must differ without a break, s of grid time
            (`carbon.replay.speedup`), so that noise causes no plan. 0: each change counts.
        demand_change: Relative change of a model's demand since the last plan.
        scale_down_s: Time for which a model's demand must be lower before it counts, s, as in
            Kubernetes' HorizontalPodAutoscaler; an increase counts at once. 0: both do.
        plans_per_hour: Plans within an hour that may change what runs. Beyond, only plans that keep
            the objective are carried out (new demand, late requests, lost GPUs, other settings);
            those that would merely gain carbon, accuracy or GPUs wait. 0: no limit.
        min_interval_s: Minimum time between plans, s; changes in between are combined.
        settle_s: Time to wait for nodes before the first plan, s.
        answers_settle_s: Time after a change of plan in which late answers trigger nothing, s: they
            may be to requests that waited under the plan before.
    """

    intensity_change: Positive = 0.05
    intensity_dwell_s: NonNegative = 900.0
    demand_change: Positive = 0.2
    scale_down_s: NonNegative = 300.0
    plans_per_hour: Annotated[int, Field(ge=0)] = 6
    min_interval_s: Annotated[float, Field(ge=0)] = 30.0
    settle_s: Annotated[float, Field(ge=0)] = 2.0
    answers_settle_s: NonNegative = 60.0


class Horizon(Section):
    """Receding horizon of a plan.

    In grid time, which is faster than real time for replayed sources: with a speedup of 1440, an
    hour of horizon passes in 2.5 s.

    Attributes:
        length_s: Length of the horizon, at most 48 h, s; 0: the present carbon intensity alone.
        step_s: Duration of one period, s.
    """

    length_s: Annotated[float, Field(ge=0, le=172_800)] = 0.0
    step_s: Annotated[float, Field(ge=300)] = 3600.0


class LoadForecast(Section):
    """Forecast of the load that plans are made for.

    Attributes:
        interval_s: Interval whose busiest second is forecast, s.
        coverage: Share of intervals whose busiest second must not exceed the planned load.
    """

    interval_s: Annotated[float, Field(ge=1)] = 60.0
    coverage: Annotated[float, Field(ge=0.5, lt=1)] = 0.9


class Online(Section):
    """Online search, for unknown or stale profiles (CLOVER, SC'23, section 4.2).

    With a search strategy (annealing, random), each configuration serves for a while, and its
    measurements correct the profiles; the best one stays. The corrections are kept for later
    searches; other strategies use them where a model is slower than its profile says.

    Attributes:
        enabled: Whether to search online.
        evaluate_s: Time that each configuration serves, s. The first tenth is not measured, while
            the queues of the rollout empty.
    """

    enabled: bool = False
    evaluate_s: Positive = 300.0


Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: Final[tuple[Weekday, ...]] = get_args(Weekday)


def _clock_time(value: object) -> object:
    """Return "22:00" where YAML 1.1 made 22 x 60 of it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value // 60:02}:{value % 60:02}"
    return value


class MaintenanceWindow(Section):
    """A time of the week in which plans may change what runs.

    Attributes:
        days: Days of the week on which it opens.
        start: When it opens, "HH:MM", UTC.
        length_s: How long it stays open, at most 24 h, s.
    """

    days: Annotated[tuple[Weekday, ...], Field(min_length=1)] = WEEKDAYS
    start: Annotated[str, BeforeValidator(_clock_time), Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    length_s: Annotated[float, Field(gt=0, le=86_400)]


class Planner(Endpoint):
    """The planner service.

    Attributes:
        database: Database of plans, inputs, reasons and outcomes: an SQLite file, or a URL
            ("postgresql://user@host/name"; a password belongs in PGPASSWORD or ~/.pgpass).
        standby: Whether this planner waits while another one leads on the database, and takes over
            when that ends or hangs (docs/high-availability.md). Else it ends with an error.
        strategy: Name of the strategy; `cinquefoil plan strategies` explains them.
        objective: What a good plan is, and what it must keep.
        carbon_budgets: Emissions of the fleet, models or sites in a period, kept with the best
            accuracy.
        triggers: When the planner plans again.
        online: Online search, for unknown or stale profiles.
        horizon: Receding horizon of a plan.
        load_forecast: Forecast of the load that plans are made for.
        batch_sizes: Batch sizes considered.
        max_processes: Maximum worker processes per segment.
        clock_ratios: SM clocks considered, as shares of a GPU's highest. Locking clocks takes
            privileges on the node.
        placement: Placement of segments on equal slices: "least_change": with the fewest changes;
            "power_aware": also, new segments are placed beside others with a similar
            `variants.<v>.clock_sensitivity`, so that more GPUs' clocks may drop.
        time_limit_s: Limit of a strategy's processor time, at most five minutes as in CLOVER, s; by
            the clock it may take six times as long on a busy machine.
        maintenance: Windows in which plans may change what runs; outside of them only lost
            capacity is replaced. None: plans may at any time.
        accounting: Account of energy and carbon.
        kubernetes: Changes of objects in the cluster that the planner runs in. None: none.
        seed: Seed of random strategies.
    """

    several = True

    listen: Address = "127.0.0.1:8462"
    standby: bool = False
    database: Database = Path("out/state/planner.sqlite3")
    strategy: Strategy = "exact"
    online: Online = Online()
    horizon: Horizon = Horizon()
    load_forecast: LoadForecast = LoadForecast()
    objective: Objective = Objective()
    carbon_budgets: Annotated[tuple[CarbonBudget, ...], Field(max_length=MAX_BUDGETS)] = ()
    triggers: Triggers = Triggers()
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1)] = (1, 2, 4, 8, 16, 32)
    max_processes: Annotated[int, Field(ge=1, le=8)] = 3
    clock_ratios: Annotated[tuple[ClockRatio, ...], Field(min_length=1)] = (1.0,)
    placement: PlacementRule = "least_change"
    time_limit_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    maintenance: tuple[MaintenanceWindow, ...] = ()
    accounting: Accounting = Accounting()
    kubernetes: Kubernetes | None = None
    seed: int = 0

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        objective = self.objective
        if self.carbon_budgets and (objective.accuracy_mean or objective.kind == "cost"):
            other = "objective.accuracy_mean" if objective.accuracy_mean else "kind: cost"
            yield f"carbon_budgets: {other} says what accuracy is worth already; omit one"
        if self.carbon_budgets and not objective.goals.clover:
            yield "carbon_budgets: needs the goal clover, whose weight is 0 (objective.goals)"
