"""Small plans for tests."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.planner.v1.records import Plan, PlanInputs, PlannedSegment, PlanState, Prediction

PREDICTION = Prediction(-1.5, {"digits": 97.0}, {"digits": 0.1}, 120.0, 25.2, 1, 0.0, {}, 0.02)


def segment(variant: str, start: int, share: float = 0.5, segment_id: str = "") -> PlannedSegment:
    """A segment on a 1g slice of one GPU."""
    spec = SegmentSpec(
        segment_id or f"s-{variant}-{start}",
        "digits",
        variant,
        8,
        2,
        "GPU-a",
        Placement("1g.5gb", start),
    )
    return PlannedSegment(spec, "node-a", share, 444.0, 0.018)


def plan(version: int, segments: Sequence[PlannedSegment], **other: object) -> Plan:
    """An active plan; `other` names fields of it."""
    made = Plan(
        version=version,
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        state=PlanState.ACTIVE,
        strategy="exact",
        reason="carbon",
        inputs=PlanInputs({}, {}, {}, 0.5),
        segments=tuple(segments),
        prediction=PREDICTION,
        steps=0,
        slice_changes=0,
    )
    return replace(made, **other)  # type: ignore[arg-type]  # the caller names real fields
