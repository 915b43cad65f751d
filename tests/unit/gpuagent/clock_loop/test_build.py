"""Settings of the clock loop from the deployment file."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.gpuagent.clock_loop.core.decide import GovernedSegment
from services.gpuagent.clock_loop.loop import promises
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.core.worker_spec import WorkerSpec
from services.kit.config import Deployment

SLO_S = 0.3


def promised(shares: list[float]) -> list[GovernedSegment]:
    """Return what is promised of each stage, then of a variant in one piece."""
    profile = {"kind": "analytic", "gmacs_per_item": 10}
    common = {"accuracy": 1.0, "profile": profile, "clock_sensitivity": 0.7}
    stages = [
        {"file": f"{at}.onnx", "share": share, "clock_sensitivity": at / len(shares)}
        for at, share in enumerate(shares)
    ]
    variants = {"deep": {**common, "stages": stages}, "one": {**common, "file": "one.onnx"}}
    deployment = Deployment.model_validate(
        {
            "version": "v1",
            "carbon": {"zones": {"z": {"source": {"kind": "synthetic"}}}},
            "nodes": {"node-0": {"zone": "z", "simulated": ["t4"]}},
            "models": {"m": {"slo": {"latency_s": SLO_S}, "demand_rps": 1, "variants": variants}},
        }
    )
    objectives = promises(deployment)
    return [
        *(objectives(_config("deep", stage)) for stage in range(len(shares))),
        objectives(_config("one")),
    ]


def _config(variant: str, stage: int = 0) -> WorkerConfig:
    spec = SegmentSpec("s-1", "m", variant, 1, 1, "GPU-1", Placement("whole", 0), stage=stage)
    worker = WorkerSpec(
        segment_id="s-1",
        model="m",
        variant=variant,
        file=Path("v.onnx"),
        batch_size=1,
        slice_uuid="GPU-1",
        costs=None,
    )
    return WorkerConfig(spec, worker, {}, 5.0, 40)


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=5))
def test_the_stages_of_a_pipeline_share_its_objective_out(shares: list[float]) -> None:
    """Latency counts from the router on: each stage may add its part, and the last ends on time."""
    *stages, one = promised(shares)
    limits_s = [0.0, *(each.objective_s for each in stages)]
    added_s = [after - before for before, after in pairwise(limits_s)]

    assert added_s == pytest.approx([SLO_S * share / sum(shares) for share in shares])
    assert limits_s[-1] == pytest.approx(SLO_S)
    assert one.objective_s == SLO_S


def test_each_stage_has_a_sensitivity_of_its_own() -> None:
    assert [each.sensitivity for each in promised([1.0, 2.0])] == [0.0, 0.5, 0.7]
