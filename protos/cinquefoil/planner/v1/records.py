"""Messages of `cinquefoil.planner.v1` as frozen values; written by `make protos`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, UTC
from enum import IntEnum
from typing import Any

from cinquefoil.condition.v1.records import Condition
from cinquefoil.gpuagent.v1.records import GpuEnergy, Node, SegmentSpec


class ReleaseCause(IntEnum):
    """Reason for which waiting work may run in a period, or may not."""

    UNSPECIFIED = 0
    # The grid is among the cleanest of the hours left.
    CLEAN = 1
    # A deadline leaves no later time.
    DUE = 2
    # Nothing is known of the grid's future, or the window is short: room that runs anyway is used at
    # once.
    ROOM = 3
    # Cleaner hours come before the deadline.
    LATER = 4
    # Interactive requests leave no room.
    NO_ROOM = 5
    # Nothing is left by then.
    NOTHING_WAITS = 6
    # The grid, or an operator, requires less power.
    HELD = 7
    # All that fits runs for a moment, to learn how much that is.
    MEASURED = 8

    @classmethod
    def _missing_(cls, value: object) -> "ReleaseCause":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


class PlanState(IntEnum):
    """Where a plan stands in its life."""

    UNSPECIFIED = 0
    # Stored, not yet begun.
    PROPOSED = 1
    # Steps are being executed.
    ROLLING = 2
    # The fleet is in the planned state.
    ACTIVE = 3
    # A later plan replaced it.
    SUPERSEDED = 4
    # A step failed; `failure` says which and why.
    FAILED = 5

    @classmethod
    def _missing_(cls, value: object) -> "PlanState":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


class GridEventStatus(IntEnum):
    """Where a grid event stands."""

    UNSPECIFIED = 0
    # It begins later.
    ANNOUNCED = 1
    # Its limit is in force.
    ACTIVE = 2
    # It is over.
    ENDED = 3
    # It was cancelled before its end.
    CANCELLED = 4

    @classmethod
    def _missing_(cls, value: object) -> "GridEventStatus":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


class AccountGrouping(IntEnum):
    """Column by which the entries of an hour are added up."""

    # Nothing: one entry per hour, zone, node and model.
    UNSPECIFIED = 0
    # The model; what no model used is one entry, without a model.
    MODEL = 1
    # The node.
    NODE = 2
    # The electricity zone.
    ZONE = 3
    # The region whose clients requested it. Entries of what peer regions emitted for this one's follow.
    REGION = 4

    @classmethod
    def _missing_(cls, value: object) -> "AccountGrouping":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class WaitingBucket:
    """Requests of one model that wait, and are due together.

    Attributes:
        due: When they must be answered.
        requests: How many.
        prompt_tokens: Their prompts, estimated. Unit: tokens.
        output_tokens: Their answers, estimated. Unit: tokens.
        window: Time that their sender gave them in all; under replay it passes as fast as grid
            time. Unset: not known.
    """

    due: datetime = datetime.fromtimestamp(0, UTC)
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    window: timedelta | None = None


@dataclass(frozen=True, slots=True)
class WaitingModel:
    """Requests of one model that wait.

    Attributes:
        model: The model.
        buckets: By deadline, the earliest first; at most 64. Requests with near deadlines share the
            earlier.
        answered: Requests that were answered since the reporter started.
        in_flight: Requests that are with routers now; they are part of `buckets`.
        energy_j: Attributed energy of those answered, by their receipts, since the reporter
            started. Unit: J.
        carbon_gco2e: Their attributed emissions. Unit: gCO2e.
    """

    model: str = ""
    buckets: tuple[WaitingBucket, ...] = ()
    answered: int = 0
    in_flight: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class ReleaseAway:
    """Part of a model's waiting work that may run in a peer region.

    Attributes:
        region: Name of the region, of `regions.peers`.
        rate_rps: Expected to run there, as far as the region grants it. Unit: requests per second.
        intensity_gco2e_per_kwh: Intensity that the region expects, PUE included. Unit: gCO2e per
            kWh.
        energy_j: Expected marginal energy of a request there. Unit: J.
    """

    region: str = ""
    rate_rps: float = 0.0
    intensity_gco2e_per_kwh: float = 0.0
    energy_j: float = 0.0


@dataclass(frozen=True, slots=True)
class ReleasePeriod:
    """Part of a model's waiting work that may run in a period.

    Attributes:
        since: Start.
        until: End.
        fill: All waiting requests may fill what interactive requests leave.
        rate_rps: Expected to run, in peer regions, too; 0: none. Unit: requests per second.
        woken_rps: Of the rate: in replicas that are powered for it alone. Unit: requests per
            second.
        cause: Why.
        intensity_gco2e_per_kwh: Intensity expected, PUE included, mean of the model's zones by
            capacity; 0: not known. Unit: gCO2e per kWh.
        room_rps: Room that interactive requests are expected to leave. Unit: requests per second.
        marginal_j: Expected marginal energy of a waiting request: what the fleet draws more because
            of it. Unit: J.
        fill_due: Without `fill`: requests that are due by then may fill what interactive requests
            leave. Unset: none.
        later_rps: Without `fill`: the most that may run of those due later than `fill_due`; 0:
            none. Unit: requests per second.
        away: Of the rate: in peer regions, cleanest first.
    """

    since: datetime = datetime.fromtimestamp(0, UTC)
    until: datetime = datetime.fromtimestamp(0, UTC)
    fill: bool = False
    rate_rps: float = 0.0
    woken_rps: float = 0.0
    cause: ReleaseCause = ReleaseCause.UNSPECIFIED
    intensity_gco2e_per_kwh: float = 0.0
    room_rps: float = 0.0
    marginal_j: float = 0.0
    fill_due: datetime | None = None
    later_rps: float = 0.0
    away: tuple[ReleaseAway, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingShortage:
    """Waiting requests that cannot be answered when they are due, and what would make it possible.

    Attributes:
        due: When they are due.
        late_requests: How many, of all that are due by then, will be late.
        possible_by: When they can be answered, as things are. Unset: not within 7 days.
        replicas: Replicas more, from now on, that would make it possible. 0: no number would.
        text: The same for people, for example "1200 of 10000 requests due 17:00 will be late: ...".
    """

    due: datetime = datetime.fromtimestamp(0, UTC)
    late_requests: int = 0
    possible_by: datetime | None = None
    replicas: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class WaitingRelease:
    """Amounts of a model's waiting work that may run, now and over the next 48 hours.

    Attributes:
        model: The model.
        periods: Periods in order, without gaps; the first contains the time of the message. A
            router or batch service that hears no more goes on by them; after the last, it fills
            what room there is.
        shortages: Deadlines that cannot be kept; empty: all can.
        done_by: When all that waits will have been answered. Unset: not within the periods.
        planned_gco2e: Expected emissions of all that waits, marginal: by this plan. Unit: gCO2e.
        at_once_gco2e: Expected emissions, had all run at once in the room there is, and in replicas
            woken for the rest. Unit: gCO2e.
        own_pool_gco2e: Expected emissions, had all run at once on replicas of its own. Unit: gCO2e.
        woken_replicas: Replicas that the plan powers for waiting work now.
        own_pool_j: Energy of a request on a replica of its own at its best batch, above that of a
            parked GPU. 0: not known. Unit: J.
        home_gco2e: Expected emissions of all that waits, were there no peer regions. 0: none runs
            in one. Unit: gCO2e.
    """

    model: str = ""
    periods: tuple[ReleasePeriod, ...] = ()
    shortages: tuple[WaitingShortage, ...] = ()
    done_by: datetime | None = None
    planned_gco2e: float = 0.0
    at_once_gco2e: float = 0.0
    own_pool_gco2e: float = 0.0
    woken_replicas: int = 0
    own_pool_j: float = 0.0
    home_gco2e: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class Goals:
    """Weights of the goals in the objective; only their ratios matter.

    Attributes:
        clover: CLOVER's f: carbon against accuracy.
        fewest_gpus: Fewest GPUs (ParvaGPU).
        infadapter: Accuracy against resources and loading (InfAdapter, Eq. 1).
    """

    clover: float = 0.0
    fewest_gpus: float = 0.0
    infadapter: float = 0.0


@dataclass(frozen=True, slots=True)
class AccuracyMean:
    """A mean accuracy that is kept over a period with the least carbon.

    Attributes:
        at_least: Least mean relative to the best variant, 0..1.
        over_s: Length of the period, grid time. Unit: seconds.
        so_far: Mean accuracy of the period's answers so far, relative to the best variant's, by
            model.
        price_gco2e: Emissions that a percentage point of a request's accuracy is worth now, by
            model. Empty: not known yet, and the mean is kept at each moment. Unit: gCO2e.
    """

    at_least: float = 0.0
    over_s: float = 0.0
    so_far: Mapping[str, float] = field(default_factory=dict)
    price_gco2e: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostObjective:
    """The least cost in money: of energy, of its carbon, and of accuracy that is given up.

    Attributes:
        carbon_price_eur_per_t: Price of emissions. Unset in a what-if: as it is. Unit: EUR per
            tonne of CO2e.
        accuracy_value_eur: Value of a percentage point of accuracy in a thousand requests. Unset in
            a what-if: as it is. Unit: EUR.
    """

    carbon_price_eur_per_t: float | None = None
    accuracy_value_eur: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class LoadForecast:
    """The largest load expected within the next interval. Unit: requests per second.

    Attributes:
        mean_rps: Expected.
        low_rps: Lower bound of the interval.
        high_rps: Upper bound of the interval: what is provided for.
    """

    mean_rps: float = 0.0
    low_rps: float = 0.0
    high_rps: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class Dispersion:
    """Index of dispersion for counts: variance over mean of the requests that arrive in a window. 1:
    as in a Poisson process; more: in bursts.

    Attributes:
        at_1s: In windows of a second.
        at_10s: In windows of ten seconds.
    """

    at_1s: float = 0.0
    at_10s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of a decision.

    Attributes:
        intensity_gco2e_per_kwh: Carbon intensity by zone. Unit: gCO2e per kWh.
        demand_rps: Demand by model. Unit: requests per second.
        gpus: GPUs by type.
        carbon_weight: CLOVER's lambda: weight of carbon against accuracy, 0..1.
        accuracy_floor: Least mean accuracy relative to the best variant at each moment, 0..1.
        goals: Weights of the goals in the objective. Unset: an older planner's, who knew CLOVER's
            alone.
        load_forecast: Forecast behind `demand_rps`, by model; absent where the demand was
            configured.
        staleness_s: Age of each zone's newest intensity, grid time. Unit: seconds.
        dispersion: Burstiness of the load, by model.
        accuracy_mean: Mean accuracy to be kept over a period. Unset: none, and carbon_weight
            counts.
        power_limit_w: Power budget in force by site, at the wall. Unit: watts.
        energy_price_eur_per_kwh: Price of electricity by zone. Unit: EUR per kWh.
        cost: What money buys, with `objective.kind: cost`. Unset: another kind, and carbon_weight
            counts.
        carbon_budget_price_gco2e: Emissions that a percentage point of a request's accuracy is
            worth, so that carbon budgets are kept, by model. Unit: gCO2e.
    """

    intensity_gco2e_per_kwh: Mapping[str, float] = field(default_factory=dict)
    demand_rps: Mapping[str, float] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)
    carbon_weight: float = 0.0
    accuracy_floor: float = 0.0
    goals: Goals | None = None
    load_forecast: Mapping[str, LoadForecast] = field(default_factory=dict)
    staleness_s: Mapping[str, float] = field(default_factory=dict)
    dispersion: Mapping[str, Dispersion] = field(default_factory=dict)
    accuracy_mean: AccuracyMean | None = None
    power_limit_w: Mapping[str, float] = field(default_factory=dict)
    energy_price_eur_per_kwh: Mapping[str, float] = field(default_factory=dict)
    cost: CostObjective | None = None
    carbon_budget_price_gco2e: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment of a plan.

    Attributes:
        spec: What and where.
        node: Node it runs on.
        share: Share of its stage's load, 0..1. At stage 0: of its model's load; the shares of all
            stages 0 of a model sum to 1. At a later stage: of the requests that the stage before
            passes on; the shares of that stage of that variant sum to 1.
        throughput_rps: Requests per second it can take.
        latency_s: Latency of one full batch. Unit: s.
    """

    spec: SegmentSpec = SegmentSpec()
    node: str = ""
    share: float = 0.0
    throughput_rps: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures that a strategy expects of a plan.

    Attributes:
        objective: CLOVER's f (Eq. 3), in percentage points; higher is better.
        accuracy: Expected accuracy over all requests, in the models' unit, by model.
        latency_s: Latency at the SLO's percentile, by model. Unit: s.
        power_w: Fleet power. Unit: W.
        carbon_gco2e_per_h: Fleet emissions. Unit: gCO2e per hour.
        gpus: Powered GPUs.
        gap: Proven optimality gap, relative: (bound - objective) / |objective|. Absent where
            nothing is proven.
        unserved_rps: Demand that the plan cannot serve within the SLO, by model. Unit: requests per
            second.
        solve_s: Time the strategy took. Unit: s.
        parked_gpus: GPUs that the plan leaves empty, by UUID: their power may be cut.
        parked_power_w: Their idle power, which cutting it would save. It is part of power_w, and of
            the carbon, unless the objective has park_idle_gpus. Unit: W.
        empty_nodes: Nodes on none of whose GPUs the plan runs anything, by name: an autoscaler may
            remove them.
        wanted_gpus: GPUs beyond the fleet that would serve unserved_rps, by type. The types are
            alternatives: as many of any one of them suffice. Empty: nothing is missing, or no type
            of the fleet would do.
        active_power_w: Of power_w: what requests draw beyond the idle power of the GPUs; it follows
            the load. Unit: W.
        saved_gco2e_per_h: Emissions less than BASE's for the same load on the same GPUs, all in
            use, by what saves them: "place", "variant", "slice", "clocks", "consolidation"; one
            after the other, so that they add up. Negative: they cost. Unit: gCO2e per hour.
        cost_eur_per_h: Cost of the fleet's energy and, with `objective.kind: cost`, of its carbon.
            Absent: no price is known. Unit: EUR per hour.
    """

    objective: float = 0.0
    accuracy: Mapping[str, float] = field(default_factory=dict)
    latency_s: Mapping[str, float] = field(default_factory=dict)
    power_w: float = 0.0
    carbon_gco2e_per_h: float = 0.0
    gpus: int = 0
    gap: float | None = None
    unserved_rps: Mapping[str, float] = field(default_factory=dict)
    solve_s: float = 0.0
    parked_gpus: tuple[str, ...] = ()
    parked_power_w: float = 0.0
    empty_nodes: tuple[str, ...] = ()
    wanted_gpus: Mapping[str, int] = field(default_factory=dict)
    active_power_w: float = 0.0
    saved_gco2e_per_h: Mapping[str, float] = field(default_factory=dict)
    cost_eur_per_h: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measurements while a plan was active.

    Attributes:
        active_s: Time active so far. Unit: s.
        requests: Requests answered meanwhile.
        energy_j: Fleet energy meanwhile. Unit: J.
        carbon_gco2e: Its carbon, each joule at the intensity then in force. Unit: gCO2e.
        latency_s: Latency at the SLO's percentile, by model, as the routers last reported. Unit: s.
        accuracy: Mean accuracy of the answers, in the models' unit, by model.
        since: When the plan became active.
        answered: Answers that the accuracy is the mean of, by model.
    """

    active_s: float = 0.0
    requests: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    latency_s: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, float] = field(default_factory=dict)
    since: datetime = datetime.fromtimestamp(0, UTC)
    answered: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Versioned desired state of the fleet, and why.

    Attributes:
        version: 1, 2, 3, ... in order of creation, over the deployment's whole life.
        created_at: When it was decided.
        state: Where it stands.
        strategy: Strategy that made it, for example "exact".
        reason: What caused it, for example "carbon: US-CAL 210.0 -> 180.5 gCO2e/kWh (-14.0 %)", or
            "rollback to 3 (by spiffe://cinquefoil/operator/ada)".
        inputs: Inputs of the decision.
        segments: What runs where.
        prediction: What the strategy expects.
        outcome: Measurements while it was active; absent until then.
        steps: Steps that its rollout took. 0: nothing had to change on a GPU.
        slice_changes: Slices created or destroyed by its rollout.
        failure: When FAILED: the step and its error.
        degraded: Which objectives the plan cannot meet and why, for example "digits: 40.0 of 100.0
            req/s are not served: 2 GPUs are too few". Empty: it meets all.
        clocks_mhz: SM clock that each GPU is held at, by UUID; GPUs left out run at the driver's
            own. Unit: MHz.
        conditions: The same as `degraded`, typed.
    """

    version: int = 0
    created_at: datetime = datetime.fromtimestamp(0, UTC)
    state: PlanState = PlanState.UNSPECIFIED
    strategy: str = ""
    reason: str = ""
    inputs: PlanInputs = PlanInputs()
    segments: tuple[PlannedSegment, ...] = ()
    prediction: Prediction = Prediction()
    outcome: Outcome | None = None
    steps: int = 0
    slice_changes: int = 0
    failure: str = ""
    degraded: str = ""
    clocks_mhz: Mapping[str, int] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """One worker process.

    Attributes:
        endpoint: Where to dial.
        segment_id: Its segment.
        variant: The variant it runs.
        accuracy: The variant's accuracy, in the model's unit.
        share: This process' share of its stage's load, 0..1; see PlannedSegment.share. In a
            RoutingChange: relative to the shares in the table before; their sum may be another than
            1.
        credits: Requests that may be in flight.
        zone: Electricity zone of its node.
        pue: Power usage effectiveness of its node: wall energy per device energy, >= 1.
        gpu_idle_power_w: Idle power of the whole GPU it is on; distinguishes high-end GPUs from
            low-end ones. 0: not known. Unit: W.
        stage: Which part of the variant it runs, from 0. Requests of clients go to stage 0 alone;
            the answer of a stage is the request of the next.
        stages: Stages of the variant; 0 or 1: it is in one piece.
        power_limit_w: Most power that the meter of what it runs on can show: the GPU's power limit,
            or that of a machine's processors. What its worker states of energy is bounded by it. 0:
            not known. Unit: W.
    """

    endpoint: str = ""
    segment_id: str = ""
    variant: str = ""
    accuracy: float = 0.0
    share: float = 0.0
    credits: int = 0
    zone: str = ""
    pue: float = 0.0
    gpu_idle_power_w: float = 0.0
    stage: int = 0
    stages: int = 0
    power_limit_w: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """Where requests for one model may go.

    Attributes:
        model: `model_name` of clients' requests.
        accuracy_unit: Unit of accuracy, for example "top-1".
        slo_latency_s: Latency objective. Unit: s.
        slo_percentile: Percentile of the objective, for example 95.
        instance_choice: Which instance takes the next request: "shares", "idle_longest",
            "least_expected_completion"; for language models "prefix", "predicted_tokens" or
            "consolidated"; where GPUs differ also "carbondis" or "carbon_aware".
        instances: Workers that may take its requests.
        discipline: Which request is next: "fcfs", "edf", "priority" or "ssjf". Empty: "fcfs".
        intensity_threshold: CARBONDIS' CIT, 0.5..2: ratio of the carbon intensity to its average
            above which "carbondis" counts it as high. Unset: 1.
        slo_first_token_s: Objective of the time from a request's arrival to its first token. 0:
            none. Unit: s.
        slo_token_s: Objective of the mean time between the tokens of an answer. 0: none. Unit: s.
    """

    model: str = ""
    accuracy_unit: str = ""
    slo_latency_s: float = 0.0
    slo_percentile: float = 0.0
    instance_choice: str = ""
    instances: tuple[Instance, ...] = ()
    discipline: str = ""
    intensity_threshold: float | None = None
    slo_first_token_s: float = 0.0
    slo_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Where requests may go now. Follows the rollout step by step, so it can differ from the plan.

    Attributes:
        revision: Increases with every change, over planner restarts too.
        plan_version: The plan it serves.
        models: Every model of the deployment, those without instances included.
        term: Term of the planner that sends it: how often the planners of one database have taken
            turns. A router refuses the tables of lower terms. 0: a planner that counts no terms.
    """

    revision: int = 0
    plan_version: int = 0
    models: tuple[ModelRoutes, ...] = ()
    term: int = 0


@dataclass(frozen=True, slots=True, order=True)
class InstanceId:
    """Identity of an instance in a table.

    Attributes:
        endpoint: Where it was dialled.
        segment_id: Its segment.
    """

    endpoint: str = ""
    segment_id: str = ""


@dataclass(frozen=True, slots=True)
class ModelRoutesChange:
    """The difference between two versions of a model's routes.

    Attributes:
        routes: The model as it is now; of its instances those that are new or changed.
        removed: Instances that are gone.
    """

    routes: ModelRoutes = ModelRoutes()
    removed: tuple[InstanceId, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutingChange:
    """The difference between two routing tables, to a client that has the first.

    Attributes:
        base_revision: Revision of the table that it changes.
        revision: Revision of the table that comes of it.
        plan_version: The plan that the new table serves.
        models: Models that are new or changed.
        removed_models: Models that are gone.
        term: Term of the new table.
    """

    base_revision: int = 0
    revision: int = 0
    plan_version: int = 0
    models: tuple[ModelRoutesChange, ...] = ()
    removed_models: tuple[str, ...] = ()
    term: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Binding:
    """A constraint that is tight.

    Attributes:
        constraint: "fleet", "capacity", "accuracy_floor", "latency_rule", "time_limit" or
            "reconfiguration_price".
        subject: What it binds: a model, a pool of GPUs, ...; empty: the whole plan.
        used: How much of it is used, 0..1.
        sentence: For people.
    """

    constraint: str = ""
    subject: str = ""
    used: float = 0.0
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predicted figures of a configuration.

    Attributes:
        objective: The score by which strategies are compared, percentage points; higher is better.
        latency_s: Latency at the SLO's percentile, by model. Unit: s.
        accuracy: Mean accuracy in the models' unit, by model.
        power_w: Fleet power. Unit: W.
        carbon_gco2e_per_h: Fleet emissions. Unit: gCO2e per hour.
        gpus: Powered GPUs.
        unserved_rps: Demand that is not served within the SLO, by model. Unit: requests per second.
    """

    objective: float = 0.0
    latency_s: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, float] = field(default_factory=dict)
    power_w: float = 0.0
    carbon_gco2e_per_h: float = 0.0
    gpus: int = 0
    unserved_rps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A configuration that could have been chosen instead.

    Attributes:
        description: What it is, for people, for example "mlp-512 on 3g.20gb instead of mlp-64".
        outlook: Its predicted figures.
        loses: How much worse its objective is than the plan's, percentage points.
    """

    description: str = ""
    outlook: Outlook = Outlook()
    loses: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Reasons why a plan is as it is.

    Attributes:
        version: Plan version; 0 for a dry run.
        bindings: Constraints that keep the plan from being better, the most binding first.
        plan: Its predicted figures.
        runner_up: The best configuration that differs from the plan; absent where there is none.
        base: Each model's best variant on whole GPUs; absent where the fleet cannot hold it.
        gap: Proven optimality gap, relative. Absent if none is proven.
        sentences: The whole explanation in a few sentences, for people.
        conditions: What the plan cannot keep, and which setting changes it.
        unchanged: Predicted figures of the segments that run, under the plan's own circumstances
            and without the GPUs that it lacks: what the plan is to be compared with. Absent where
            nothing runs.
    """

    version: int = 0
    bindings: tuple[Binding, ...] = ()
    plan: Outlook = Outlook()
    runner_up: Alternative | None = None
    base: Alternative | None = None
    gap: float | None = None
    sentences: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    unchanged: Outlook | None = None


@dataclass(frozen=True, slots=True, order=True)
class ShareChange:
    """A segment whose share changes.

    Attributes:
        segment_id: The segment.
        from_share: Its model's share before.
        to_share: Its share after.
    """

    segment_id: str = ""
    from_share: float = 0.0
    to_share: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class ClockChange:
    """A GPU whose SM clock changes.

    Attributes:
        gpu_uuid: The GPU.
        from_mhz: Clock before; 0: the driver's own. Unit: MHz.
        to_mhz: Clock after. Unit: MHz.
    """

    gpu_uuid: str = ""
    from_mhz: int = 0
    to_mhz: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Unlike:
    """A circumstance that two plans do not share.

    Attributes:
        circumstance: "load", "grid", "fleet" or "objective".
        sentence: How it differs, for people.
        fields: Fields of Outlook whose values are not comparable for it.
    """

    circumstance: str = ""
    sentence: str = ""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Differences between two plans.

    Attributes:
        from_version: Versions compared; 0: a dry run.
        to_version: See from_version.
        started: Segments that only the later plan has.
        stopped: Segments that only the earlier plan has.
        shares: Segments whose share changes.
        clocks: GPUs whose clock changes.
        from_outlook: Predicted figures of both.
        to_outlook: See from_outlook.
        kept: Segments that stay.
        unlike: Circumstances that differ, so that some predicted figures are not comparable.
    """

    from_version: int = 0
    to_version: int = 0
    started: tuple[PlannedSegment, ...] = ()
    stopped: tuple[PlannedSegment, ...] = ()
    shares: tuple[ShareChange, ...] = ()
    clocks: tuple[ClockChange, ...] = ()
    from_outlook: Outlook = Outlook()
    to_outlook: Outlook = Outlook()
    kept: int = 0
    unlike: tuple[Unlike, ...] = ()


@dataclass(frozen=True, slots=True)
class GridEvent:
    """A time in which a site may draw less power. Where several are in force the strictest limit
    counts.

    Attributes:
        event_id: Unique name, at most 200 letters, digits and "._:-". Empty in an order: the
            planner chooses.
        site: Site of the deployment file.
        limit_w: Most power at the wall. An order has this, limit_share, level or change_w; the
            planner turns the others into this one. Unit: watts.
        limit_share: Most power as a share of the baseline, 0..1.
        level: Level of `grid.levels`, which has its share of the baseline. 0: none.
        change_w: Most power as a difference from the baseline, below 0. Unit: watts.
        start: Start, UTC. Unset in an order: now.
        end: End, UTC.
        ramp_s: Time after the start in which the limit falls from the baseline, in steps. Unit: s.
        priority: Importance in the words of its source; lower is more important, 0: not given. It
            is shown only.
        source: What it is from: "operator", "mqtt" or "openadr/NAME".
        status: Where it stands at the time of the message.
        baseline_w: Expected mean power without it, when it was announced; 0: not known. Unit:
            watts.
        baseline_method: Method of the baseline.
        announced_at: When the planner took it in, UTC.
        cancelled_at: When it was cancelled, UTC. Unset: it was not.
        principal: Identity that ordered it. Empty: identities are not checked.
    """

    event_id: str = ""
    site: str = ""
    limit_w: float | None = None
    limit_share: float | None = None
    level: int = 0
    change_w: float | None = None
    start: datetime = datetime.fromtimestamp(0, UTC)
    end: datetime = datetime.fromtimestamp(0, UTC)
    ramp_s: float = 0.0
    priority: int = 0
    source: str = ""
    status: GridEventStatus = GridEventStatus.UNSPECIFIED
    baseline_w: float = 0.0
    baseline_method: str = ""
    announced_at: datetime = datetime.fromtimestamp(0, UTC)
    cancelled_at: datetime | None = None
    principal: str = ""


@dataclass(frozen=True, slots=True)
class SitePower:
    """A site's power at the wall, now.

    Attributes:
        site: The site.
        limit_w: Strictest limit in force. Unset: none. Unit: watts.
        setting: Setting or event that the limit is from.
        metered_w: Metered power of its connected nodes: devices and hosts, PUE included. Unit:
            watts.
        nodes_away: Nodes that are not connected: their power is not in metered_w.
    """

    site: str = ""
    limit_w: float | None = None
    setting: str = ""
    metered_w: float = 0.0
    nodes_away: int = 0


@dataclass(frozen=True, slots=True)
class GridEventPoint:
    """A stretch of time around a grid event.

    Attributes:
        since: Its start, UTC.
        metered_w: Mean power metered at the wall. Unset: nothing was metered. Unit: watts.
        baseline_w: Power expected without the event. Unset: not known. Unit: watts.
        limit_w: The event's limit at the end of the stretch. Unset: none then. Unit: watts.
        intensity_gco2e_per_kwh: Carbon intensity of the site's zone. Unset: not known. Unit:
            gCO2e/kWh.
    """

    since: datetime = datetime.fromtimestamp(0, UTC)
    metered_w: float | None = None
    baseline_w: float | None = None
    limit_w: float | None = None
    intensity_gco2e_per_kwh: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class ModelInEvent:
    """Requests to a model during a grid event, or before it.

    Attributes:
        model: The model.
        answered: Requests answered during the event.
        late: Of them: later than the objective.
        refused: Requests refused because of overload during the event.
        answered_before: Requests answered in the time before it that the points cover.
        late_before: Of them: later than the objective.
        refused_before: Requests refused then.
    """

    model: str = ""
    answered: int = 0
    late: int = 0
    refused: int = 0
    answered_before: int = 0
    late_before: int = 0
    refused_before: int = 0


@dataclass(frozen=True, slots=True)
class GridEventReport:
    """Report of a site in a grid event: power, requests and emissions.

    Attributes:
        event: The event.
        step_s: Length of a point: minutes are kept for 26 hours, ten minutes for 8 days. Unit: s.
        points: From as long before the event as it lasts, at most an hour, to its end or now.
        baseline_method: Method of the points' baseline; empty: none is known.
        models: Requests of the whole deployment, by model.
        energy_j: Metered energy at the wall during the event. Unit: J.
        shed_j: Energy of the baseline less that, over the same time. Unset: no baseline. Unit: J.
        carbon_gco2e: Operational emissions of energy_j, by the zone's intensity. Unset: not known.
            Unit: gCO2e.
        shed_share_min: Smallest shed power of a point as a share of the promise, baseline less
            limit. Unset: no point has both.
        metered_points: Points of the event that were metered.
        points_above: Of them: above the limit.
        event_points: Whole points of the event so far, metered or not.
        zone: Zone whose intensity counts.
    """

    event: GridEvent = GridEvent()
    step_s: int = 0
    points: tuple[GridEventPoint, ...] = ()
    baseline_method: str = ""
    models: tuple[ModelInEvent, ...] = ()
    energy_j: float = 0.0
    shed_j: float | None = None
    carbon_gco2e: float | None = None
    shed_share_min: float | None = None
    metered_points: int = 0
    points_above: int = 0
    event_points: int = 0
    zone: str = ""


@dataclass(frozen=True, slots=True, order=True)
class FleetHistory:
    """The message `cinquefoil.planner.v1.FleetHistory`.

    Attributes:
        metered_s: Time that the agents' reports of energy cover: power is energy over this. Unit:
            s.
        energy_j: Metered energy of all GPUs. Unit: J.
        base_energy_j: Energy of BASE for the same requests. Unit: J.
        carbon_gco2e: Operational carbon of energy_j, PUE included. Unit: gCO2e.
        base_carbon_gco2e: The same of base_energy_j. Unit: gCO2e.
        routed_s: Time that the routers' reports cover: rates of requests are over this. Unit: s.
    """

    metered_s: float = 0.0
    energy_j: float = 0.0
    base_energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    base_carbon_gco2e: float = 0.0
    routed_s: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class ZoneHistory:
    """The message `cinquefoil.planner.v1.ZoneHistory`.

    Attributes:
        known_s: Time for which the intensity was known. Unit: s.
        intensity_gco2e_s_per_kwh: Carbon intensity summed over that time. Unit: gCO2e s per kWh.
    """

    known_s: float = 0.0
    intensity_gco2e_s_per_kwh: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class ModelHistory:
    """The message `cinquefoil.planner.v1.ModelHistory`.

    Attributes:
        arrived: Requests that arrived.
        answered: Requests that were answered.
        late: Of them: answered later than the objective.
        refused: Requests refused because of overload.
        timed: Answered requests of windows whose latency is known.
        latency_s: Sum over these of their window's latency at the objective's percentile. Unit: s.
        accuracy: Sum of the answers' accuracies, in the model's unit.
        slo_latency_s: Latency objective at the end of the stretch. Unit: s.
        slo_percentile: Percentile of the objective then, 0..100.
    """

    arrived: int = 0
    answered: int = 0
    late: int = 0
    refused: int = 0
    timed: int = 0
    latency_s: float = 0.0
    accuracy: float = 0.0
    slo_latency_s: float = 0.0
    slo_percentile: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class GpuHistory:
    """The message `cinquefoil.planner.v1.GpuHistory`.

    Attributes:
        metered_s: Time that the reports of its energy cover. Unit: s.
        energy_j: Metered energy. Unit: J.
    """

    metered_s: float = 0.0
    energy_j: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class SiteHistory:
    """The message `cinquefoil.planner.v1.SiteHistory`.

    Attributes:
        metered_s: Time that the reports of its energy cover. Unit: s.
        energy_j: Metered energy at the wall: devices and hosts, PUE included. Unit: J.
        limited_s: Time in which a power limit was in force. Unit: s.
        limit_j: The limit in force summed over that time. Unit: J.
    """

    metered_s: float = 0.0
    energy_j: float = 0.0
    limited_s: float = 0.0
    limit_j: float = 0.0


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One stretch of time. All figures are sums, so that stretches add up to a longer one; a mean is a
    sum over the time, or the answers, that it covers. Where these are 0 nothing is known.

    Attributes:
        since: Start of the stretch: a multiple of its length since 1970, UTC.
        fleet: The whole fleet.
        zones: By electricity zone.
        models: By model.
        gpus: By GPU UUID. Empty where the fleet has more than 256 GPUs.
        sites: By site of the deployment file.
    """

    since: datetime = datetime.fromtimestamp(0, UTC)
    fleet: FleetHistory = FleetHistory()
    zones: Mapping[str, ZoneHistory] = field(default_factory=dict)
    models: Mapping[str, ModelHistory] = field(default_factory=dict)
    gpus: Mapping[str, GpuHistory] = field(default_factory=dict)
    sites: Mapping[str, SiteHistory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forward:
    """Requests of a model that a router may send to a peer region.

    Attributes:
        model: The model.
        region: Name of the region, of `regions.peers`.
        rate_rps: Most that this router may send of those that cannot wait. Unit: requests per
            second.
        valid: How long, from now on: a region that falls silent gets nothing more.
        waiting_rps: Most that this router may send of those that can wait. Unit: requests per
            second.
    """

    model: str = ""
    region: str = ""
    rate_rps: float = 0.0
    valid: timedelta = timedelta()
    waiting_rps: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class AddedGpus:
    """GPUs that are added to the fleet.

    Attributes:
        type: GPU type; the fleet must have one of it.
        node: A node of the deployment file, whose zone and PUE they get.
        count: How many, >= 1.
    """

    type: str = ""
    node: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class CarbonBudget:
    """A carbon budget in its present period.

    Attributes:
        kg: The budget. Unit: kgCO2e.
        per: Period of the calendar: "day", "week", "month" or "year".
        spent_gco2e: Emissions since the period began. Unit: gCO2e.
        expected_gco2e: Emissions of the whole period at the present price. Absent: not known yet.
            Unit: gCO2e.
        start: When the period began.
        end: When it ends.
        short: Whether it is used up, or even the least accurate plans exceed it.
        models: Models that it is of, with their share of what GPUs draw without work. Empty: of
            all.
        sites: Sites that it is of. Empty: of all.
    """

    kg: float = 0.0
    per: str = ""
    spent_gco2e: float = 0.0
    expected_gco2e: float | None = None
    start: datetime = datetime.fromtimestamp(0, UTC)
    end: datetime = datetime.fromtimestamp(0, UTC)
    short: bool = False
    models: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Circumstances that differ from the present; unset fields stay as at present.

    Attributes:
        demand_rps: Demand by model. Unit: requests per second.
        intensity_gco2e_per_kwh: Carbon intensity by zone. Unit: gCO2e per kWh.
        carbon_weight: CLOVER's lambda, 0..1.
        accuracy_floor: Least mean accuracy relative to the best variant, 0..1.
        goals: Weights of the goals.
        strategy: Strategy name.
        without_gpus: GPUs that are taken away, by UUID.
        added_gpus: GPUs that are added.
        accuracy_mean: Least mean accuracy over a period relative to the best variant, 0..1; its
            price is found from the last period's grid and load. 0: none, and carbon_weight counts.
            With a carbon_weight none is kept.
        waiting_within: Time from now within which all that waits is due, unless it is due earlier.
            Unset: as it is.
        energy_price_eur_per_kwh: Price of electricity by zone. Unit: EUR per kWh.
        cost: What money buys: the objective is then the least cost.
        carbon_budgets: Carbon budgets in the place of the deployment's, at most 8; of each, kg,
            per, models and sites count. One that differs from one of the deployment's in kg alone
            has spent as much as that; another has spent evenly so far.
    """

    demand_rps: Mapping[str, float] = field(default_factory=dict)
    intensity_gco2e_per_kwh: Mapping[str, float] = field(default_factory=dict)
    carbon_weight: float | None = None
    accuracy_floor: float | None = None
    goals: Goals | None = None
    strategy: str = ""
    without_gpus: tuple[str, ...] = ()
    added_gpus: tuple[AddedGpus, ...] = ()
    accuracy_mean: float | None = None
    waiting_within: timedelta = timedelta()
    energy_price_eur_per_kwh: Mapping[str, float] = field(default_factory=dict)
    cost: CostObjective | None = None
    carbon_budgets: tuple[CarbonBudget, ...] = ()


@dataclass(frozen=True, slots=True)
class DryRunResponse:
    """A plan that was not made, and why it would be.

    Attributes:
        plan: The plan that would be decided. Version 0.
        explanation: Why.
        diff: Against the active plan; absent where none is.
        proposal_id: For Apply; empty where the circumstances were not the present ones. Valid for
            10 minutes.
        releases: When waiting work would run, by model.
    """

    plan: Plan = Plan()
    explanation: Explanation = Explanation()
    diff: PlanDiff | None = None
    proposal_id: str = ""
    releases: tuple[WaitingRelease, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """Only lost capacity is replaced for now: a freeze is on, or no maintenance window is open.

    Attributes:
        until: When it ends.
        why: Why, with the operator's identity and reason.
    """

    until: datetime = datetime.fromtimestamp(0, UTC)
    why: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Leader:
    """Of several planners on one database, the one that plans.

    Attributes:
        holder: Its host and process, for a person.
        term: Its term: increases whenever another process leads.
    """

    holder: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True, order=True)
class ProfileDrift:
    """A kind of segment whose measurements differ from its profile.

    Attributes:
        model: The model it serves.
        variant: The variant it runs.
        gpu: GPU type.
        slice: Slice size.
        batch_size: Its batch size.
        processes: Its worker processes.
        latency_ratio: Time of its batches relative to the profile, 1 where the profile is right.
        energy_ratio: Their energy relative to the profile, 1 where the profile is right.
    """

    model: str = ""
    variant: str = ""
    gpu: str = ""
    slice: str = ""
    batch_size: int = 0
    processes: int = 0
    latency_ratio: float = 0.0
    energy_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """An operator took a node out of use.

    Attributes:
        drain: What runs there is moved now, not with the next plan.
        principal: Identity of the operator; empty: identities are not checked.
        at: When.
    """

    drain: bool = False
    principal: str = ""
    at: datetime = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node of the fleet.

    Attributes:
        node: As last reported.
        connected: Its stream is open.
        energy: As last reported.
        drifts: Profiles that are wrong there, as last reported.
        pue: Power usage effectiveness in use: measured where `node.pue` is set, else as configured.
            Unit: 1.
        config_digest: Digest of its agent's deployment file, as last reported; empty: not known.
        joined: It joined by itself: the deployment file does not name it.
        address: "host:port" where others reach its agent.
        order: What an operator ordered of it; unset: it may be used.
    """

    node: Node = Node()
    connected: bool = False
    energy: tuple[GpuEnergy, ...] = ()
    drifts: tuple[ProfileDrift, ...] = ()
    pue: float = 0.0
    config_digest: str = ""
    joined: bool = False
    address: str = ""
    order: NodeOrder | None = None


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """Energy and carbon of an hour. Entries of a window have the same sum in every grouping, but for
    those with `emitted_in`: what other regions emitted is in their own accounts.

    Attributes:
        hour: When the hour began, UTC.
        zone: Electricity zone. Empty: all zones.
        node: Node. Empty: all nodes, or not known (of tokens).
        model: Model. Empty: all models, or none: idle and unattributed energy.
        energy_j: Metered, of GPUs (without PUE): active, idle and unattributed energy. Unit: J.
        idle_j: Of it: idle energy. Unit: J.
        unattributed_j: Of it: active energy that no segment's busy time explains. Unit: J.
        carbon_gco2e: Operational carbon of energy_j: x PUE x the intensity in force. Unit: gCO2e.
        idle_gco2e: Of it: of idle_j. Unit: gCO2e.
        unattributed_gco2e: Of it: of unattributed_j. Unit: gCO2e.
        idle_share_j: Idle energy that `nodes.<n>.idle_share` attributes to models: in addition to
            energy_j of a model, never part of it. Unit: J.
        idle_share_gco2e: Its operational carbon. Unit: gCO2e.
        embodied_gco2e: Embodied carbon, of making the GPUs, by time and slice. 0: not counted.
            Unit: gCO2e.
        base_energy_j: What BASE (CLOVER 5.1: each model's best variant on whole GPUs) would have
            drawn for the same requests on the same GPUs. Unit: J.
        base_carbon_gco2e: Its operational carbon. Unit: gCO2e.
        requests: Requests answered, as workers counted them.
        input_tokens: Tokens of prompts, as routers counted them; not known by zone or node.
        output_tokens: Tokens generated; as input_tokens.
        profile_error_gco2e: By how much base_carbon_gco2e - carbon_gco2e, which is what was saved,
            changes where the profiles that BASE is modelled by err by their half-width (95 %).
            Signed, so that entries add up; the 95 % interval of a sum is saved +- the root of the
            three sums' squares. Unit: gCO2e.
        meter_error_gco2e: The same of the meters: counters, integrated power; 0 where energy was
            not metered but comes of the profiles. Unit: gCO2e.
        intensity_error_gco2e: The same of carbon intensities that were estimated, forecast, held or
            assumed. Unit: gCO2e.
        cached_input_tokens: Of input_tokens, those that servers had cached, where they state that.
        cost_eur: Cost of energy_j at the wall, each joule at the price then in force, and, with
            `objective.kind: cost`, of carbon_gco2e. 0: no price was known. Unit: EUR.
        origin: Region whose clients requested it, where entries are added up by it. Energy of a
            model is split by the receipts of its requests. Empty: no requests' energy, or another
            grouping.
        emitted_in: Peer region that answered requests of this one's clients: requests, energy_j and
            carbon_gco2e by its receipts. Empty: emitted here.
    """

    hour: datetime = datetime.fromtimestamp(0, UTC)
    zone: str = ""
    node: str = ""
    model: str = ""
    energy_j: float = 0.0
    idle_j: float = 0.0
    unattributed_j: float = 0.0
    carbon_gco2e: float = 0.0
    idle_gco2e: float = 0.0
    unattributed_gco2e: float = 0.0
    idle_share_j: float = 0.0
    idle_share_gco2e: float = 0.0
    embodied_gco2e: float = 0.0
    base_energy_j: float = 0.0
    base_carbon_gco2e: float = 0.0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    profile_error_gco2e: float = 0.0
    meter_error_gco2e: float = 0.0
    intensity_error_gco2e: float = 0.0
    cached_input_tokens: int = 0
    cost_eur: float = 0.0
    origin: str = ""
    emitted_in: str = ""


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that was changed at run time.

    Attributes:
        path: Its path.
        value: Its value. Null: the model or variant is not served.
        principal: Identity of the operator that changed it; empty: identities are not checked.
        at: When.
    """

    path: str = ""
    value: Any = None
    principal: str = ""
    at: datetime = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class ProfileDrifts:
    """Each should be measured again: `cinquefoil gpuagent profile`.

    Attributes:
        drifts: All of them.
    """

    drifts: tuple[ProfileDrift, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerShare:
    """A node's share of its site's power budget, which its agent keeps by its meters.

    Attributes:
        limit_w: Most power of all its devices together, without hosts and PUE. Unset: no budget.
            Unit: W.
        setting: Setting or event that the budget is from, such as "sites.hall.power_budget_w".
    """

    limit_w: float | None = None
    setting: str = ""


@dataclass(frozen=True, slots=True, order=True)
class RegionLoad:
    """Requests of one model between this region and a peer. They are part of the other counts.

    Attributes:
        region: The peer.
        model: The model.
        sent: Requests that the peer answered.
        received: Requests that came from it.
        returned: Requests that it failed to answer, and that were answered here.
        answered: Requests of its clients that were answered here.
        answered_j: Active energy of `answered`, by their receipts. Unit: J.
        answered_gco2e: Operational carbon of answered_j. Unit: gCO2e.
        sent_j: Active energy of `sent`, by the peer's receipts. Unit: J.
        sent_gco2e: Operational carbon of sent_j, in the peer's region. Unit: gCO2e.
        sent_waiting: Of `sent`: those that could wait.
    """

    region: str = ""
    model: str = ""
    sent: int = 0
    received: int = 0
    returned: int = 0
    answered: int = 0
    answered_j: float = 0.0
    answered_gco2e: float = 0.0
    sent_j: float = 0.0
    sent_gco2e: float = 0.0
    sent_waiting: int = 0


@dataclass(frozen=True, slots=True, order=True)
class RegionLink:
    """The network between a router and a peer region's.

    Attributes:
        region: The peer.
        round_trip_s: Least of the last round trips. Unit: s.
    """

    region: str = ""
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class WaitingGroup:
    """Requests that wait and are due at about the same time.

    Attributes:
        due_s: Time until the first of them gives up. Unit: s.
        requests: How many.
    """

    due_s: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class WaitingLoad:
    """Requests that can wait, of one model at one router: a class below all others.

    Attributes:
        queued: Requests that no instance has now.
        queued_tokens: Of these: estimate of the tokens of their prompts and answers. 0: no texts.
        first_due_s: The earliest time at which one of them gives up, from now on. 0: none is
            queued. Unit: s.
        in_flight: Requests that instances have now.
        room: Requests that instances may have now beside all others: the room that these leave.
        answered: Requests answered since the router started.
        ended: Requests that ended without an answer since the router started: expired, cancelled or
            failed.
        input_tokens: Tokens of the answered prompts since the router started.
        output_tokens: Tokens generated since the router started.
        energy_j: Active energy attributed to the answers since the router started. Unit: J.
        marginal_energy_j: Energy that the answers have added, by what one more takes at the present
            batch, since the router started. Unit: J.
        service_s: Mean time that an instance takes for one, over the last some dozens. 0: not
            known. Unit: s.
        singles: Of `queued`: those that came one by one, not with a batch, by deadline; at most 8
            groups.
    """

    queued: int = 0
    queued_tokens: int = 0
    first_due_s: float = 0.0
    in_flight: int = 0
    room: int = 0
    answered: int = 0
    ended: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    energy_j: float = 0.0
    marginal_energy_j: float = 0.0
    service_s: float = 0.0
    singles: tuple[WaitingGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The load of one model at one router.

    Attributes:
        model: The model.
        arrivals: Requests that arrived in the window.
        answered: Requests answered in the window.
        failed: Requests that ended in an error in the window, but errors of clients and what they
            cancelled.
        late: Answered, but later than the SLO.
        queue_depth: Requests waiting for an instance now.
        latency_s: Latency quantiles over the window, "50", "95", "99" and the SLO's percentile.
            Unit: s.
        answered_by_variant: Requests answered in the window, by variant.
        refused: Of `failed`: refused, or dropped from the queue, because of overload.
        overloaded_s: Time in the window in which the model was overloaded: new requests had to wait
            for half of the SLO's latency or longer, and variants without a share served as well.
            Unit: s.
        input_tokens: Tokens of prompts that were answered since the router started.
        output_tokens: Tokens generated since the router started.
        arrivals_per_s: Requests that arrived in each second of the wall clock that ended since the
            last report, from `first_second` on: how bursty the load is. Empty: the router does not
            count them.
        input_tokens_squared: Sum of the squares of the prompts' tokens since the router started:
            how much prompts differ. 0: the router does not count them.
        cached_input_tokens: Of input_tokens, those that servers had cached.
        waiting: Requests that can wait: those of batches, of the service tier "flex" or with
            `wait_until`. No other field counts them. Absent: the router has had none.
    """

    model: str = ""
    arrivals: int = 0
    answered: int = 0
    failed: int = 0
    late: int = 0
    queue_depth: int = 0
    latency_s: Mapping[str, float] = field(default_factory=dict)
    answered_by_variant: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0
    overloaded_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    arrivals_per_s: tuple[int, ...] = ()
    input_tokens_squared: float = 0.0
    cached_input_tokens: int = 0
    waiting: WaitingLoad | None = None
