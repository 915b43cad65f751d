"""Decisions from snapshots: strategy, placement and rollout, as pure functions."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1.records import Segment as RunningSegment
from cinquefoil.gpuagent.v1.records import SegmentState
from cinquefoil.planner.v1.records import Dispersion, LoadForecast
from services.kit.config import Objective
from services.kit.config import Planner as Settings
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.grouping import summed
from services.planner.core import feasibility
from services.planner.core.accounting.levers import saved_by_lever
from services.planner.core.accounting.site import embodied_carbon
from services.planner.core.accuracy_mean.frontier import Frontier, frontier
from services.planner.core.autoscaling import wanted_gpus
from services.planner.core.fixed_inputs import FixedInputs
from services.planner.core.forecast.horizon import FORESEEING, plan_ahead
from services.planner.core.forecast.text_lengths import TextLength
from services.planner.core.model import (
    Configuration,
    Gpu,
    Model,
    Period,
    Problem,
    Score,
    Segment,
    SegmentKind,
    SiteLimit,
    variants_of,
)
from services.planner.core.placement import placement, rollout
from services.planner.core.placement.actions import Rollout
from services.planner.core.placement.bridges import BridgeRoom
from services.planner.core.placement.redundancy import missing_redundancy
from services.planner.core.problem import catalog, score
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.problem.power_conditions import power_conditions
from services.planner.core.problem.power_curve import at_load, expected
from services.planner.core.problem.shortfall import shortfalls
from services.planner.core.problem.validation import check
from services.planner.core.service_level import Violation
from services.planner.core.spares import reinforced
from services.planner.core.strategies import COMPLETE, REDUNDANT, REGISTRY
from services.planner.core.strategies.single_slices import of_one_slice

_LEAVING = (SegmentState.DRAINING, SegmentState.QUARANTINED)


def check_strategy(path: str, name: str) -> None:
    """Check the name of a strategy.

    Raises:
        InvalidArgument: There is no strategy of that name; the error's field is `path`.
    """
    if name not in REGISTRY:
        raise InvalidArgument.at(
            path, f"must be one of {', '.join(sorted(REGISTRY))}, got {name!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Circumstances that snapshots and the causes of plans have in common.

    Attributes:
        strategy: Name of the strategy.
        blocked: Variants that agents gave up on, as (model, variant).
        late: Models with more late requests than the SLO allows.
        inaccurate: Models whose answers are less accurate than the floor.
        steady_gco2e_per_kwh: Lowest and highest intensity within the triggers' dwell, by zone;
            missing: it has not changed within.
        fixed: Settings that plans depend on; empty: unknown.
        objective_by: Identity of the operator who ordered objective and strategy; "": unknown.
        unreached: Running segments that are to be replaced: no router reaches them.
        cordoned: Nodes without plans, which cause no plan by themselves.
        absent: Variants omitted because no node has their file, as (model, variant).
        text_lengths: Observed usual lengths of texts by model; missing: those of the profiles.
        accuracy_price: Emissions that a point of a request's accuracy is worth, by model, gCO2e;
            missing: CLOVER's lambda says it.
        dispersion: Burstiness of the load by model; missing: unknown.
        power_limit_w: Power budget in force by site, W; missing: none.
    """

    strategy: str
    blocked: frozenset[tuple[str, str]] = frozenset()
    late: tuple[Violation, ...] = ()
    inaccurate: tuple[Violation, ...] = ()
    steady_gco2e_per_kwh: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fixed: FixedInputs = field(default_factory=dict)
    objective_by: str = ""
    unreached: frozenset[str] = frozenset()
    cordoned: frozenset[str] = frozenset()
    absent: frozenset[tuple[str, str]] = frozenset()
    text_lengths: Mapping[str, TextLength] = field(default_factory=dict)
    accuracy_price: Mapping[str, float] = field(default_factory=dict)
    dispersion: Mapping[str, Dispersion] = field(default_factory=dict)
    power_limit_w: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot(Circumstances):
    """The cluster at one instant: a plan's cause, its input, and a record kept with it.

    Attributes:
        gpus: The fleet.
        models: Models to serve, with the load to provide for, without blocked variants.
        running: Every running segment, in any state.
        shares: Current share of its model's load, by segment id.
        objective: The objective.
        forecast: Carbon intensity in the coming periods, the current one first; empty: only the
            current one is known.
        leaving: GPUs beside the fleet that operators wait for: their segments are to be moved.
        staleness_s: Staleness of each zone's intensity, grid time, s.
        load_forecast: Forecasts behind the load to provide for, by model.
        removed: Models with variants that the deployment no longer has but that may still run: a
            rollout must know what they serve.
        accuracy_so_far: Mean accuracy of the answers in the objective's current period, relative
            to the best variant's, by model.
        parked: Models without requests, which get no segment.
        sites: Power budgets in force.
        boot_s: Measured times from a worker's start to its first answer, by model and variant, s.
    """

    gpus: tuple[Gpu, ...]
    models: tuple[Model, ...]
    running: tuple[RunningSegment, ...]
    shares: Mapping[str, float]
    objective: Objective
    forecast: tuple[Period, ...] = ()
    leaving: tuple[Gpu, ...] = ()
    staleness_s: Mapping[str, float] = field(default_factory=dict)
    load_forecast: Mapping[str, LoadForecast] = field(default_factory=dict)
    removed: tuple[Model, ...] = ()
    accuracy_so_far: Mapping[str, float] = field(default_factory=dict)
    parked: tuple[Model, ...] = ()
    sites: tuple[SiteLimit, ...] = ()
    boot_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def demand_rps(self) -> dict[str, float]:
        """Load to provide for by model, req/s; of parked models 0."""
        return {
            **{model.name: 0.0 for model in self.parked},
            **{model.name: model.demand_rps for model in self.models},
        }

    @property
    def all_gpus(self) -> tuple[Gpu, ...]:
        """GPUs of the fleet, and those leaving it."""
        return (*self.gpus, *self.leaving)


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: the segments to run, their score, and the rollout to them.

    Attributes:
        problem: The problem.
        configuration: The strategy's configuration.
        score: Its score.
        running: The segments that run now.
        target: The segments to run.
        rollout: Stages from one to the other.
        nodes: Node by UUID of each GPU concerned.
        conditions: Promises that the target cannot keep, and why; empty: it keeps all.
        wanted_gpus: GPUs by type, each of which would serve the unserved load; empty: all is
            served.
        saved_gco2e_per_h: Emissions less than BASE's, by lever.
    """

    problem: Problem
    configuration: Configuration
    score: Score
    running: tuple[Segment, ...]
    target: tuple[Segment, ...]
    rollout: Rollout
    nodes: Mapping[str, str]
    conditions: tuple[Condition, ...] = ()
    wanted_gpus: Mapping[str, int] = field(default_factory=dict)
    saved_gco2e_per_h: Mapping[str, float] = field(default_factory=dict)

    @property
    def degraded(self) -> str:
        """The conditions in one sentence; "": there are none."""
        return "; ".join(each.sentence for each in self.conditions)


def decide(snapshot: Snapshot, settings: Settings, new_id: Callable[[], str]) -> Decision:
    """Decide which segments to run where.

    Args:
        snapshot: The cluster.
        settings: Batch sizes, processes, clocks, time limit, seed.
        new_id: Returns an unused segment id.

    Raises:
        FailedPrecondition: There is no GPU.
        InvalidArgument: A number of the snapshot is invalid; the error names it.
    """
    problem = pose(snapshot, settings)
    strategy = REGISTRY[snapshot.strategy]
    foresees = snapshot.strategy in FORESEEING
    configuration = plan_ahead(problem, strategy) if foresees else strategy(problem)
    target = placement.place(problem, configuration, new_id)
    free = snapshot.strategy in REDUNDANT
    chosen = reinforced(problem, configuration, target, new_id, free=free)
    return _decision(snapshot, problem, *chosen, new_id)


def adopt(
    snapshot: Snapshot,
    settings: Settings,
    target: tuple[Segment, ...],
    new_id: Callable[[], str],
) -> Decision:
    """Score segments that were decided elsewhere, and find the rollout to them.

    Args:
        snapshot: The cluster.
        settings: As for `decide`.
        target: The segments to run; they must fit on the fleet
            (`services.planner.core.feasibility`).
        new_id: Returns an unused segment id.

    Raises:
        FailedPrecondition, InvalidArgument: As for `decide`.
    """
    problem = pose(snapshot, settings)
    return _decision(snapshot, problem, configuration_of(target, problem), target, new_id)


def realise(
    snapshot: Snapshot,
    problem: Problem,
    configuration: Configuration,
    new_id: Callable[[], str],
) -> Decision:
    """Find places for a configuration that was decided elsewhere, and the rollout to it.

    Args:
        snapshot: The cluster.
        problem: The problem that it solves; fleet and running segments are taken from `snapshot`.
        configuration: The configuration to run.
        new_id: Returns an unused segment id.

    Raises:
        FailedPrecondition: It does not fit on the fleet.
    """
    problem = replace(problem, gpus=snapshot.gpus, running=staying(snapshot))
    target = placement.place(problem, configuration, new_id)
    chosen = reinforced(problem, configuration, target, new_id, free=False)
    return _decision(snapshot, problem, *chosen, new_id)


def pose(snapshot: Snapshot, settings: Settings, *, leeway: float = 1.0) -> Problem:
    """Return the problem for a strategy; errors as for `decide`.

    Args:
        snapshot: The cluster.
        settings: As for `decide`.
        leeway: Factor by which kinds of the catalog may miss the latency rule.
    """
    if not snapshot.gpus:
        why = (
            "operators have taken every one out of use"
            if snapshot.leaving
            else "no node has joined with one"
        )
        raise FailedPrecondition(f"the fleet has no GPU: {why}")
    kinds = catalog.build(
        snapshot.models,
        tuple(dict.fromkeys(gpu.pool for gpu in snapshot.gpus)),
        snapshot.objective.model_copy(
            update={"latency_share": leeway * snapshot.objective.latency_share}
        ),
        settings.batch_sizes,
        settings.max_processes,
        clock_ratios=settings.clock_ratios,
    )
    problem = Problem(
        gpus=snapshot.gpus,
        models=snapshot.models,
        catalog=kinds,
        objective=snapshot.objective,
        running=staying(snapshot),
        seed=settings.seed,
        time_limit_s=settings.time_limit_s,
        batch_sizes=settings.batch_sizes,
        forecast=snapshot.forecast,
        placement=settings.placement,
        accuracy_price=snapshot.accuracy_price,
        embodied_gco2e_per_s=_embodied(snapshot, settings),
        sites=snapshot.sites,
        boot_s=snapshot.boot_s,
    )
    check(problem)
    return at_load(problem)


def _embodied(snapshot: Snapshot, settings: Settings) -> dict[str, float]:
    """Return the embodied carbon of a powered GPU by type, gCO2e/s, where plans count it."""
    given = settings.accounting.embodied
    if given is None or not given.in_plans:
        return {}
    types = {gpu.pool.type.name: gpu.pool.type for gpu in snapshot.gpus}
    return {
        name: embodied_carbon(given, gpu, ()).embodied_gco2e_per_s for name, gpu in types.items()
    }


def frontier_of(snapshot: Snapshot, loads: Sequence[float], settings: Settings) -> Frontier:
    """Return the plans that are best at some price of accuracy; errors as for `decide`.

    Args:
        snapshot: The cluster at its usual grid and load.
        loads: Loads relative to that.
        settings: As for `decide`; all searches together take at most the time of one decision.
    """
    return frontier(pose(snapshot, settings), loads, REGISTRY["exact"], settings.time_limit_s)


def running(snapshot: Snapshot) -> tuple[Segment, ...]:
    """Return what runs as Segments; those on GPUs outside the fleet are dropped."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.all_gpus}
    offered = variants_of((*snapshot.removed, *snapshot.parked, *snapshot.models))
    known: dict[Hashable, SegmentKind] = {}
    return tuple(
        feasibility.placed(
            each.spec,
            gpu,
            offered,
            share=snapshot.shares.get(each.spec.segment_id, 0.0),
            clock_mhz=gpu.clock_mhz,
            known=known,
        )
        for each in snapshot.running
        if (gpu := gpus.get(each.spec.gpu_uuid)) is not None
    )


def staying(snapshot: Snapshot) -> tuple[Segment, ...]:
    """Return the running segments that may stay.

    Those that drain, failed, are to be moved or left the deployment may not: a plan is made as if
    they did not run, and its rollout stops them.
    """
    leaving = {each.spec.segment_id for each in snapshot.running if each.state in _LEAVING}
    gpus, offered = {gpu.uuid for gpu in snapshot.gpus}, variants_of(snapshot.models)
    return tuple(
        each
        for each in running(snapshot)
        if each.segment_id not in leaving
        and gpus.issuperset(each.gpu_uuids)
        and each.kind.throughput_rps > 0
        and (each.kind.model, each.kind.variant) in offered
    )


def configuration_of(segments: Iterable[Segment], problem: Problem) -> Configuration:
    """Return the configuration of segments, with the load by their shares."""
    segments = tuple(segments)
    models = {model.name: model for model in problem.models}
    chosen = summed(  # each variant's share of its model's load
        ((each.kind.model, each.kind.variant), each.share)
        for each in segments
        if not each.kind.stage.index
    )
    load_rps: dict[SegmentKind, float] = {}
    for segment in segments:
        kind = segment.kind
        passed_on = chosen.get((kind.model, kind.variant), 0.0) if kind.stage.index else 1.0
        model = models.get(kind.model)
        usable_rps = admissible_rps(problem.objective, model, kind) if model else 0.0
        wanted_rps = passed_on * segment.share * (model.demand_rps if model else 0.0)
        load_rps[kind] = load_rps.get(kind, 0.0) + min(wanted_rps, usable_rps)
    return Configuration(Counter(segment.kind for segment in segments), load_rps)


def _decision(
    snapshot: Snapshot,
    problem: Problem,
    configuration: Configuration,
    target: tuple[Segment, ...],
    new_id: Callable[[], str],
) -> Decision:
    before = running(snapshot)
    spare = BridgeRoom(problem.gpus, new_id)
    pools = {gpu.uuid: gpu.pool for gpu in problem.gpus}
    in_use = Counter(pools[uuid] for uuid in {uuid for each in target for uuid in each.gpu_uuids})
    found = expected(problem, configuration, score.score(problem, configuration, in_use=in_use))
    return Decision(
        problem=problem,
        configuration=configuration,
        score=found,
        running=before,
        target=target,
        rollout=rollout.plan_rollout(snapshot.all_gpus, before, target, snapshot.models, spare),
        nodes={gpu.uuid: gpu.node for gpu in snapshot.all_gpus},
        conditions=(
            *power_conditions(problem, configuration, found),
            *shortfalls(problem, found, configuration.limited),
            *missing_redundancy(problem, target),
            *_left_out(snapshot),
        ),
        wanted_gpus=wanted_gpus(problem, found),
        saved_gco2e_per_h=saved_by_lever(problem, configuration, found),
    )


def _left_out(snapshot: Snapshot) -> Iterator[Condition]:
    """Yield the models that are unserved because their strategy plans none of their variants."""
    known = " or ".join(sorted(COMPLETE))
    for model in snapshot.models:
        if snapshot.strategy not in COMPLETE and not any(map(of_one_slice, model.variants)):
            yield Condition(
                ConditionKind.STRATEGY_WITHOUT_PIPELINES,
                f"model/{model.name}",
                f"{model.name}: every variant is a pipeline or on several GPUs, and "
                f"{snapshot.strategy} plans neither: choose {known}",
                "planner.strategy",
            )
