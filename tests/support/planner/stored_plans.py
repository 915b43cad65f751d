"""A plan as the store is given it."""

from datetime import UTC, datetime

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.planner.v1.records import Plan, PlanInputs, PlannedSegment, PlanState, Prediction

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPEC = SegmentSpec("s-1", "digits", "small", 8, 2, "GPU-a", Placement("1g.5gb", 3))
PLAN = Plan(
    version=0,
    created_at=NOW,
    state=PlanState.PROPOSED,
    strategy="exact",
    reason="first plan: 1 node, 1 GPU",
    inputs=PlanInputs({"US-CAL": 210.0}, {"digits": 60.0}, {"a100-40gb": 1}, 0.5),
    segments=(PlannedSegment(SPEC, "node-a", 1.0, 444.0, 0.018),),
    prediction=Prediction(1.5, {"digits": 0.97}, {"digits": 0.1}, 120.0, 25.2, 1, 0.0, {}, 0.02),
    steps=2,
    slice_changes=1,
)
GPUS = {("node-a", "GPU-a"): "a100-40gb"}
