"""What a good plan is, and how it is looked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from services.kit.config.accounting import Accounting
from services.kit.config.section import (
    Address,
    ClockRatio,
    Endpoint,
    Fraction,
    NonNegative,
    Positive,
    Section,
)


def _no_other_url(value: object) -> object:
    """A URL that we do not speak to would else pass for the path of a file."""
    if isinstance(value, str) and "://" in value and not re.match(_DATABASE_URL, value):
        raise ValueError("must be a file, or a URL that begins with postgresql:// or sqlite://")
    return value


_DATABASE_URL = r"^(postgresql|sqlite)(\+\w+)?://"
Dsn = Annotated[str, Field(pattern=_DATABASE_URL)]
Database = Annotated[Path | Dsn, BeforeValidator(_no_other_url)]
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


BatchSize = Annotated[int, Field(ge=1)]
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

    @model_validator(mode="after")
    def _some_goal(self) -> Goals:
        if not (self.clover or self.fewest_gpus or self.infadapter):
            raise ValueError("at least one goal must have a weight above 0")
        return self


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


class Objective(Section):
    """What a good plan is (CLOVER Eq. 1-3, unless `goals` say otherwise).

    Attributes:
        goals: What counts, and how much.
        infadapter: Weights inside the goal of that name.
        carbon_weight: CLOVER's lambda, 0 (accuracy only) .. 1 (carbon only).
        baseline_intensity_gco2e_per_kwh: Intensity in C_base; the reference that makes carbon
            differences relative. It scales the objective, not the set of plans.
        accuracy_floor: Least mean accuracy of a model relative to its best variant, 0..1.
        latency_share: theta: a segment's batch latency may take this share of the SLO; the rest is
            for waiting (ParvaGPU section IV-A uses 0.5).
        max_utilisation: rho: share of a segment's throughput that a plan may use.
        switch_price: Objective points that replacing a segment costs, per segment and GPU. Paid
            once, for points that last: the plan must gain them for one hour of grid time to be
            worth the change. A plan without a horizon takes it that the next hour is like now.
        layout_price: Objective points that creating or destroying a slice costs, per slice and
            GPU; paid like `switch_price`.
        park_idle_gpus: Count idle power only of GPUs that serve (consolidation); otherwise all.
    """

    goals: Goals = Goals()
    infadapter: InfAdapter = InfAdapter()
    carbon_weight: Fraction = 0.5
    baseline_intensity_gco2e_per_kwh: Positive = 207.13
    accuracy_floor: Fraction = 0.0
    latency_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    max_utilisation: Annotated[float, Field(gt=0, le=1)] = 0.7
    switch_price: Annotated[float, Field(ge=0)] = 0.0
    layout_price: Annotated[float, Field(ge=0)] = 0.0
    park_idle_gpus: bool = False


class Triggers(Section):
    """When to plan anew.

    Attributes:
        intensity_change: Relative change of a zone's intensity since the last plan (CLOVER: 5 %).
        intensity_dwell_s: How long an intensity must have been so different without a break, s of
            grid time (`carbon.replay.speedup`). In between it may jump to and fro: noise is no
            cause to plan. 0: each change counts at once.
        demand_change: Relative change of a model's demand since the last plan.
        min_interval_s: Least time between plans, s. Changes meanwhile are taken together.
        settle_s: Time to wait for nodes before the first plan, s.
    """

    intensity_change: Positive = 0.05
    intensity_dwell_s: NonNegative = 900.0
    demand_change: Positive = 0.2
    min_interval_s: Annotated[float, Field(ge=0)] = 30.0
    settle_s: Annotated[float, Field(ge=0)] = 2.0


class Horizon(Section):
    """How far ahead a plan looks (receding horizon).

    In grid time, which replayed sources run faster than clocks: with a speedup of 1440, an hour
    of horizon passes in 2.5 s.

    Attributes:
        length_s: 0: the present carbon intensity alone; at most 48 h.
        step_s: Length of one period, s.
    """

    length_s: Annotated[float, Field(ge=0, le=172_800)] = 0.0
    step_s: Annotated[float, Field(ge=300)] = 3600.0


class LoadForecast(Section):
    """What load to provide for.

    Attributes:
        interval_s: The forecast is of the busiest second within the next interval, s.
        coverage: Share of intervals whose busiest second must not exceed what is provided for.
    """

    interval_s: Annotated[float, Field(ge=1)] = 60.0
    coverage: Annotated[float, Field(ge=0.5, lt=1)] = 0.9


class Online(Section):
    """Search by trying, for profiles that are unknown or stale (CLOVER, SC'23, section 4.2).

    With the strategies that search (annealing, random): a configuration serves for a while, is
    measured and corrects the profiles, then the next; the best one stays. What was learned is kept
    for later searches; other strategies, dry runs and explanations go by the profiles.

    Attributes:
        enabled: Search so.
        evaluate_s: How long each configuration serves, s. The first tenth is not measured: there
            the queues of the rollout empty.
    """

    enabled: bool = False
    evaluate_s: Positive = 300.0


class Planner(Endpoint):
    """The planner service.

    Attributes:
        database: Of plans, inputs, reasons and outcomes: an SQLite file, or the URL of a database
            ("postgresql://user@host/name"; a password belongs in PGPASSWORD or ~/.pgpass).
        strategy: Who decides; `cinquefoil plan strategies` explains them.
        online: Search by trying, for profiles that are unknown or stale.
        horizon: How far ahead a plan looks.
        load_forecast: What load to provide for.
        batch_sizes: Batch sizes considered.
        max_processes: Most worker processes per segment.
        clock_ratios: SM clocks considered, as shares of a GPU's highest. Locking clocks takes
            privileges on the node.
        placement: Where segments go on slices that are alike: "least_change": wherever least
            changes; "power_aware": also, what is new goes beside what follows the SM clock alike
            (`variants.<v>.clock_sensitivity`), so that more of the GPUs' clocks may drop.
        time_limit_s: Longest a strategy may think, s.
        accounting: What is counted of energy and carbon, and how long it is kept.
        seed: For strategies that draw numbers.
    """

    listen: Address = "127.0.0.1:8462"
    database: Database = Path("out/state/planner.sqlite3")
    strategy: Strategy = "exact"
    online: Online = Online()
    horizon: Horizon = Horizon()
    load_forecast: LoadForecast = LoadForecast()
    objective: Objective = Objective()
    triggers: Triggers = Triggers()
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1)] = (1, 2, 4, 8, 16, 32)
    max_processes: Annotated[int, Field(ge=1, le=8)] = 3
    clock_ratios: Annotated[tuple[ClockRatio, ...], Field(min_length=1)] = (1.0,)
    placement: PlacementRule = "least_change"
    time_limit_s: Positive = 5.0
    accounting: Accounting = Accounting()
    seed: int = 0

    @field_serializer("database", when_used="json")
    def _without_password(self, database: Path | str) -> str:
        # Settings are logged and printed as JSON.
        return re.sub(r"(?<=password=)[^&]*|(?<=:)[^:@/]+(?=@)", "***", str(database))
