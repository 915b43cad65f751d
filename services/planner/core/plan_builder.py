"""Plans from decisions, and observations from plans."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from cinquefoil.gpuagent.v1.records import SegmentSpec
from cinquefoil.planner.v1.records import (
    AccuracyMean,
    CostObjective,
    Goals,
    Plan,
    PlanInputs,
    PlanState,
)
from services.kit.config import Objective
from services.planner.core.autoscaling import empty_nodes
from services.planner.core.decide import Decision, Snapshot
from services.planner.core.energy_prices.course import by_zone
from services.planner.core.fixed_inputs import FixedInputs
from services.planner.core.model import Gpu
from services.planner.core.plan import planned, prediction_of
from services.planner.core.triggers import Observation

_SAME_SHARE = 0.01


def build_plan(
    decision: Decision, snapshot: Snapshot, *, reason: str, now: datetime, solve_s: float = 0.0
) -> Plan:
    """Return a decision as a plan; its version is 0 until it is stored.

    Args:
        decision: The decision.
        snapshot: Snapshot that the decision was made from.
        reason: Reason of the plan, a sentence.
        now: Time of the decision, UTC.
        solve_s: Time the strategy took, s.
    """
    score = decision.score
    parked = _parked(decision)
    return Plan(
        version=0,
        created_at=now,
        state=PlanState.PROPOSED,
        strategy=snapshot.strategy,
        reason=reason,
        inputs=_inputs(snapshot),
        segments=tuple(planned(segment) for segment in decision.target),
        prediction=prediction_of(
            score,
            gap=decision.configuration.gap,
            solve_s=solve_s,
            parked_gpus=tuple(gpu.uuid for gpu in parked),
            parked_power_w=sum(gpu.pool.type.idle_power_w for gpu in parked),
            empty_nodes=empty_nodes(decision.problem.gpus, decision.target),
            wanted_gpus=decision.wanted_gpus,
            saved_gco2e_per_h=decision.saved_gco2e_per_h,
        ),
        steps=decision.rollout.actions,
        slice_changes=decision.rollout.slice_changes,
        degraded=decision.degraded,
        conditions=decision.conditions,
        clocks_mhz={
            uuid: segment.kind.clock_mhz
            for segment in decision.target
            if segment.kind.clock_mhz
            for uuid in segment.gpu_uuids
        },
    )


def _parked(decision: Decision) -> tuple[Gpu, ...]:
    """Return the GPUs without planned segments."""
    used = {uuid for segment in decision.target for uuid in segment.gpu_uuids}
    return tuple(gpu for gpu in decision.problem.gpus if gpu.uuid not in used)


def _inputs(snapshot: Snapshot) -> PlanInputs:
    zones = {gpu.pool.zone for gpu in snapshot.gpus}
    mean = snapshot.objective.accuracy_mean
    return PlanInputs(
        intensity_gco2e_per_kwh={
            gpu.pool.zone: gpu.pool.intensity_gco2e_per_kwh for gpu in snapshot.gpus
        },
        demand_rps=snapshot.demand_rps,
        gpus=Counter(gpu.pool.type.name for gpu in snapshot.gpus),
        carbon_weight=snapshot.objective.carbon_weight,
        accuracy_floor=snapshot.objective.accuracy_floor,
        goals=Goals(**snapshot.objective.goals.model_dump()),
        load_forecast=snapshot.load_forecast,
        dispersion={model.name: model.dispersion for model in snapshot.models},
        power_limit_w=snapshot.power_limit_w,
        energy_price_eur_per_kwh={
            gpu.pool.zone: gpu.pool.eur_per_kwh for gpu in snapshot.gpus if gpu.pool.eur_per_kwh
        },
        cost=_cost(snapshot.objective),
        carbon_budget_price_gco2e={}
        if mean is not None or snapshot.objective.kind == "cost"
        else snapshot.accuracy_price,
        staleness_s={zone: age_s for zone, age_s in snapshot.staleness_s.items() if zone in zones},
        accuracy_mean=None
        if mean is None
        else AccuracyMean(
            at_least=mean.at_least,
            over_s=mean.over_s,
            so_far=snapshot.accuracy_so_far,
            price_gco2e=snapshot.accuracy_price,
        ),
    )


def _cost(objective: Objective) -> CostObjective | None:
    if objective.kind != "cost" or objective.accuracy_value_eur is None:
        return None
    return CostObjective(objective.carbon_price_eur_per_t, objective.accuracy_value_eur)


def unchanged(plan: Plan, active: Plan) -> bool:
    """Return whether carrying `plan` out would change nothing significant."""
    before = {segment.spec: segment.share for segment in active.segments}
    after = {segment.spec: segment.share for segment in plan.segments}
    return (
        plan.steps == 0
        and plan.prediction.wanted_gpus == active.prediction.wanted_gpus
        and before.keys() == after.keys()
        and all(abs(after[spec] - before[spec]) <= _SAME_SHARE for spec in after)
    )


def specs(plan: Plan) -> frozenset[SegmentSpec]:
    """Return the specifications that agents run under a plan."""
    return frozenset(segment.spec for segment in plan.segments)


def remembered(plan: Plan, gpus: Mapping[tuple[str, str], str], fixed: FixedInputs) -> Observation:
    """Return the observation behind a plan for `gpus` with these settings."""
    return Observation(
        intensity_gco2e_per_kwh=plan.inputs.intensity_gco2e_per_kwh,
        demand_rps=plan.inputs.demand_rps,
        dispersion=plan.inputs.dispersion,
        gpus=gpus,
        segments=specs(plan),
        strategy=plan.strategy,
        carbon_weight=plan.inputs.carbon_weight,
        fixed=fixed,
        power_limit_w=plan.inputs.power_limit_w,
        accuracy_price=plan.inputs.accuracy_mean.price_gco2e
        if plan.inputs.accuracy_mean
        else plan.inputs.carbon_budget_price_gco2e,
        counted_eur_per_kwh=by_zone(
            plan.inputs.energy_price_eur_per_kwh,
            plan.inputs.intensity_gco2e_per_kwh,
            plan.inputs.cost.carbon_price_eur_per_t or 0.0,
        )
        if plan.inputs.cost
        else {},
    )
