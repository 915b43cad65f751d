"""Cost of a batch on the simulated device, and the agent's table of a profile."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.gpuagent.core.batch_costs import CostCurve, Costs
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.worker_config import (
    CLOCK_RATIOS,
    Network,
    WorkerConfigBuilder,
    shape_of,
    tabulate,
)
from services.kit.errors import FailedPrecondition, NotFound
from services.kit.hardware import gpu_types
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import BatchCost, SliceShape

A100 = GpuInfo(
    uuid="GPU-1",
    index=0,
    model=gpu_types.load("a100-40gb"),
    mig_enabled=True,
    slices=((Placement("3g.20gb", 0), "MIG-1"), (Placement("1g.5gb", 4), "MIG-2")),
    clock_mhz=1410,
)


@dataclass(frozen=True)
class Powers:
    """A profile that was measured at powers of two only, and with all processes busy."""

    processes: int

    @property
    def method(self) -> Literal["table"]:
        return "table"

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        assert shape.profile == "3g.20gb"
        if batch_size & (batch_size - 1) or processes != self.processes:
            return None
        return BatchCost(batch_size / clock_ratio, float(batch_size))


def _spec(**changes: Any) -> SegmentSpec:
    values: dict[str, Any] = {
        "segment_id": "s-1",
        "model": "m",
        "variant": "v",
        "batch_size": 4,
        "processes": 2,
        "gpu_uuid": "GPU-1",
        "placement": Placement("3g.20gb", 0),
    }
    return SegmentSpec(**(values | changes))


@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from([kind.name for kind in A100.model.geometry.kinds]),
)
def test_a_table_says_what_its_profile_says(batch: int, processes: int, kind: str) -> None:
    profile = AnalyticProfile(gmacs_per_item=2.0, memory_mib=64.0, memory_mib_per_item=1.0)
    shape = shape_of(A100, kind)
    costs = tabulate(profile, shape, _spec(batch_size=8, processes=3))

    for ratio in CLOCK_RATIOS:
        expected = profile.batch(shape, batch, processes, clock_ratio=ratio)
        assert costs.at(batch, processes, ratio) == expected


@given(st.integers(1, 20), st.integers(1, 5), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_a_faster_clock_never_takes_longer(
    items: int, processes: int, one: float, other: float
) -> None:
    profile = AnalyticProfile(gmacs_per_item=2.0, memory_mib=64.0, memory_mib_per_item=1.0)
    costs = tabulate(profile, shape_of(A100, "3g.20gb"), _spec())
    slow, fast = sorted((one, other))

    slow_s, fast_s = (costs.at(items, processes, r).latency_s for r in (slow, fast))
    assert slow_s >= fast_s * (1 - 1e-9)


def test_sizes_that_were_not_measured_cost_as_the_next_larger() -> None:
    costs = tabulate(Powers(2), shape_of(A100, "3g.20gb"), _spec())

    assert [costs.at(items, 1, 1.0).latency_s for items in (1, 2, 3, 4)] == [1, 2, 4, 4]


def test_a_request_beyond_the_batch_size_costs_in_proportion() -> None:
    costs = Costs((CostCurve(1.0, ((0.1,), (0.2,)), ((1.0,), (2.0,))),))

    cost = costs.at(6, 1, 1.0)

    assert (cost.latency_s, cost.energy_j) == pytest.approx((0.6, 6.0))


def test_a_segment_that_does_not_fit_is_refused() -> None:
    profile = AnalyticProfile(gmacs_per_item=2.0, memory_mib=30_000.0)

    with pytest.raises(FailedPrecondition, match="does not fit on a100-40gb 3g"):
        tabulate(profile, shape_of(A100, "3g.20gb"), _spec())


def test_a_worker_configuration_shares_idle_power_by_sms_and_processes() -> None:
    config_builder = WorkerConfigBuilder(
        {("m", "v"): (Network(Path("v.onnx"), Powers(2)),)}, simulated=True
    )

    config = config_builder.build(_spec(), A100)

    assert config.worker.slice_uuid == "MIG-1"
    assert config.idle_power_w == pytest.approx(A100.model.context_power_w * 42 / 108 / 2)
    assert (config.worker.provider, config.environment) == ("CPUExecutionProvider", {})


def test_a_real_gpu_is_named_by_its_slice_alone() -> None:
    config_builder = WorkerConfigBuilder(
        {("m", "v"): (Network(Path("v.onnx"), Powers(2)),)}, simulated=False
    )

    config = config_builder.build(_spec(), A100)

    assert config.environment == {"CUDA_VISIBLE_DEVICES": "MIG-1"}
    assert (config.worker.provider, config.worker.charged) == ("CUDAExecutionProvider", False)


def test_a_real_gpu_runs_what_its_profile_does_not_know() -> None:
    """Costs there are only to compare with; without them, nothing is compared."""
    config_builder = WorkerConfigBuilder(
        {("m", "v"): (Network(Path("v.onnx"), Powers(2)),)}, simulated=False
    )

    assert config_builder.build(_spec(batch_size=2), A100).worker.costs is not None
    assert config_builder.build(_spec(batch_size=3), A100).worker.costs is None


def test_what_is_not_there_is_refused_by_name() -> None:
    config_builder = WorkerConfigBuilder(
        {("m", "v"): (Network(Path("v.onnx"), Powers(2)),)}, simulated=True
    )

    with pytest.raises(NotFound, match="no variant 'w' of model 'm'"):
        config_builder.build(_spec(variant="w"), A100)
    with pytest.raises(FailedPrecondition, match=r"no slice 3g\.20gb@4"):
        config_builder.build(_spec(placement=Placement("3g.20gb", 4)), A100)
