"""A plan as a record: versioned desired state, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple

from cinquefoil.condition.v1.records import Condition
from services.kit.config import Goals
from services.kit.segment import SegmentSpec
from services.planner.core.model import Queue, Score, Segment, queue_of


class PlanState(IntEnum):
    """Where a plan stands in its life; values are the wire's."""

    PROPOSED = 1
    ROLLING = 2
    ACTIVE = 3
    SUPERSEDED = 4
    FAILED = 5


class Pin(NamedTuple):
    """A plan that an operator holds.

    Attributes:
        version: Of the plan.
        principal: Identity of the operator; "": identities are not checked.
    """

    version: int
    principal: str = ""


def ordered_by(principal: str) -> str:
    """Return what a reason says of the operator behind it; "" where identities are not checked."""
    return f" (by {principal})" if principal else ""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment of a plan.

    Attributes:
        spec: What and where.
        node: Node it runs on.
        share: Share of what comes to its queue, 0..1.
        throughput_rps: Requests per second it can take.
        latency_s: Latency of one full batch, s.
    """

    spec: SegmentSpec
    node: str
    share: float
    throughput_rps: float
    latency_s: float

    @property
    def queue(self) -> Queue:
        """The queue that the segment takes its requests from."""
        return queue_of(self.spec.model, self.spec.variant, self.spec.stage)

    @classmethod
    def of(cls, segment: Segment) -> PlannedSegment:
        """Return a placed segment as a plan records it."""
        return cls(
            spec=segment.spec,
            node=segment.node,
            share=segment.share,
            throughput_rps=segment.kind.throughput_rps,
            latency_s=segment.kind.latency_s,
        )


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """The largest load expected within the next interval, req/s.

    Attributes:
        mean_rps: Expected.
        low_rps, high_rps: Bounds of the interval; the upper one is provided for.
    """

    mean_rps: float
    low_rps: float
    high_rps: float


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was known when a plan was made.

    Attributes:
        intensity_gco2e_per_kwh: By zone.
        demand_rps: By model.
        gpus: Number of GPUs by type.
        carbon_weight: CLOVER's lambda, 0..1.
        accuracy_floor: Least mean accuracy relative to the best variant, 0..1.
        goals: Weights of the goals in the objective.
        load_forecast: What `demand_rps` was chosen from, by model; empty where it was given.
        staleness_s: How old the knowledge of each zone's intensity was, grid time.
    """

    intensity_gco2e_per_kwh: Mapping[str, float]
    demand_rps: Mapping[str, float]
    gpus: Mapping[str, int]
    carbon_weight: float
    accuracy_floor: float = 0.0
    goals: Goals = field(default_factory=Goals)
    load_forecast: Mapping[str, LoadForecast] = field(default_factory=dict)
    staleness_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the strategy expects; units as in `plan.proto`.

    Attributes:
        objective: CLOVER's f (Eq. 3), percentage points.
        accuracy, latency_s, unserved_rps: By model.
        power_w, carbon_gco2e_per_h: Of the fleet.
        gpus: Powered GPUs.
        gap: Proven relative optimality gap, or None.
        solve_s: Time the strategy took, s.
        parked_gpus: GPUs that the plan leaves empty, by UUID.
        parked_power_w: Their idle power; part of `power_w` unless the objective parks idle GPUs.
        empty_nodes: Nodes of which all GPUs are left empty.
        wanted_gpus: GPUs beyond the fleet, by type, any of which would serve what is not served.
    """

    objective: float
    accuracy: Mapping[str, float]
    latency_s: Mapping[str, float]
    unserved_rps: Mapping[str, float]
    power_w: float
    carbon_gco2e_per_h: float
    gpus: int
    gap: float | None = None
    solve_s: float = 0.0
    parked_gpus: tuple[str, ...] = ()
    parked_power_w: float = 0.0
    empty_nodes: tuple[str, ...] = ()
    wanted_gpus: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, score: Score, **known: Any) -> Prediction:
        """Return the prediction of a configuration from its score; `known` are further fields."""
        return cls(
            objective=score.objective,
            accuracy=score.accuracy,
            latency_s=score.latency_s,
            unserved_rps=score.unserved_rps,
            power_w=score.power_w,
            carbon_gco2e_per_h=score.carbon_gco2e_per_h,
            gpus=score.powered_gpus,
            **known,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen while a plan was active.

    Attributes:
        since: When it became active.
        active_s: Time active so far, s.
        requests: Requests answered meanwhile.
        energy_j: Fleet energy meanwhile, J.
        carbon_gco2e: Its carbon, each joule at the intensity then in force.
        latency_s: At the SLO's percentile, by model, as last reported, s.
        accuracy: Mean of the answers, by model, in the models' unit.
        answered: Answers that the accuracy is the mean of, by model.
    """

    since: datetime
    active_s: float = 0.0
    requests: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    latency_s: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, float] = field(default_factory=dict)
    answered: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Versioned desired state of the fleet.

    Attributes:
        version: 1, 2, 3, ...; 0 until it is stored.
        created_at: When it was decided, UTC.
        state: Where it stands.
        strategy: Strategy that made it.
        reason: What caused it, a sentence.
        inputs: What was known.
        segments: What runs where.
        prediction: What the strategy expects.
        steps: Actions of its rollout.
        slice_changes: Slices its rollout creates or destroys.
        failure: When FAILED: what failed and why.
        outcome: What was seen; None until it was active.
        degraded: What it cannot keep and why; "": it keeps everything.
        clocks_mhz: SM clock that each GPU is held at, by UUID; others run at the driver's own.
        conditions: `degraded`, typed.
    """

    version: int
    created_at: datetime
    state: PlanState
    strategy: str
    reason: str
    inputs: Inputs
    segments: tuple[PlannedSegment, ...]
    prediction: Prediction
    steps: int
    slice_changes: int
    failure: str = ""
    outcome: Outcome | None = None
    degraded: str = ""
    clocks_mhz: Mapping[str, int] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
