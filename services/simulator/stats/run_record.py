"""Raw record of one policy's run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cinquefoil.gpuagent.v1.records import CreateSlice
from cinquefoil.planner.v1.records import Plan
from services.kit.config import Deployment
from services.planner.core.decide import Decision
from services.planner.core.placement.actions import StartSegment
from services.simulator.scenario import Policy
from services.simulator.stats.sampled_intervals import SampledInterval, WaitingCounts


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan and its rollout.

    Attributes:
        version: 1, 2, ...
        decided_s, active_s: Virtual time, s; None: its rollout was under way at the end.
        reason: Reason of the plan.
        degraded: Promises that it cannot keep, and why.
        shares: Share of each model's load by variant, as planned.
        slices: Segments by variant and slice.
        objective, gap: Objective and gap at the decision; gap None: nothing is proven.
        latency_s: Predicted latency by model, s.
        power_w: Predicted power of all GPUs, W.
        steps, slice_changes: Number of its rollout's steps, and of those on slices.
        starts, slices_created: Number of segments that its rollout starts, and of slices it
            creates.
        least_capacity: Least capacity over demand during its rollout, by model.
        demand_rps: Load that it provides for, by model.
    """

    version: int
    decided_s: float
    active_s: float | None
    reason: str
    degraded: str
    shares: Mapping[str, Mapping[str, float]]
    slices: Mapping[str, int]
    objective: float
    gap: float | None
    latency_s: Mapping[str, float]
    power_w: float
    steps: int
    slice_changes: int
    starts: int
    slices_created: int
    least_capacity: Mapping[str, float]
    demand_rps: Mapping[str, float]

    @classmethod
    def of(cls, plan: Plan, decision: Decision, now_s: float) -> PlanRecord:
        """Return a plan whose rollout begins now, s of virtual time."""
        shares: dict[str, dict[str, float]] = {}
        for segment in plan.segments:
            by_variant = shares.setdefault(segment.spec.model, {})
            variant = segment.spec.variant
            by_variant[variant] = by_variant.get(variant, 0.0) + segment.share
        specs_ = (segment.spec for segment in plan.segments)
        slices = Counter(f"{spec.variant} on {spec.placement.profile}" for spec in specs_)
        return cls(
            version=plan.version,
            decided_s=now_s,
            active_s=None,
            reason=plan.reason,
            degraded=plan.degraded,
            shares=shares,
            slices=dict(sorted(slices.items())),
            objective=plan.prediction.objective,
            gap=plan.prediction.gap,
            latency_s=dict(plan.prediction.latency_s),
            power_w=plan.prediction.power_w,
            steps=plan.steps,
            slice_changes=plan.slice_changes,
            starts=decision.rollout.count(StartSegment),
            slices_created=decision.rollout.count(CreateSlice),
            least_capacity=dict(decision.rollout.least_capacity),
            demand_rps=dict(plan.inputs.demand_rps),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """Record of a policy's run.

    Attributes:
        policy: The policy.
        deployment: The deployment under it.
        intervals: All intervals, in order.
        plans: Plans made.
        decisions: Number of decisions by the strategy.
        open: Number of requests that had not ended at the end, by model.
        waiting: Requests that can wait, by model.
    """

    policy: Policy
    deployment: Deployment
    intervals: tuple[SampledInterval, ...]
    plans: tuple[PlanRecord, ...]
    decisions: int
    open: Mapping[str, int]
    waiting: Mapping[str, WaitingCounts] = field(default_factory=dict)
