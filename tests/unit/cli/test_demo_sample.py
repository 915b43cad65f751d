"""Figures that the demo reads off a plan and the grid."""

from datetime import UTC, datetime, timedelta

from cinquefoil.gpuagent.v1.inventory_pb2 import (
    Gpu,
    GpuType,
    Node,
    Placement,
    Segment,
    SegmentSpec,
    SliceProfile,
)
from services.cli.console.slice_bars import SliceCells
from services.cli.demo.progress import bars_of
from services.cli.demo.sample import GpuSample, Grid, gpu_sample
from tests.support.cli.demo_days import MIDNIGHT, day


def test_a_gpu_shows_what_runs_on_each_of_its_slices() -> None:
    """Only its own segments, each as wide as its slice's profile."""
    profiles = [
        SliceProfile(name="3g.20gb", compute_slices=3),
        SliceProfile(name="7g.40gb", compute_slices=7),
    ]
    gpu = Gpu(uuid="GPU-1", index=1, type=GpuType(profiles=profiles, context_power_w=55))
    placement = Placement(profile="3g.20gb", start=4)
    specs = [
        SegmentSpec(model="digits", variant="svc", gpu_uuid="GPU-1", placement=placement),
        SegmentSpec(model="digits", variant="tree", gpu_uuid="GPU-2", placement=placement),
    ]
    node = Node(name="node-0", segments=[Segment(spec=spec) for spec in specs])
    piece = SliceCells(start=4, cells=3, runs="digits/svc")
    assert gpu_sample(node, gpu) == GpuSample("node-0/1", 7, (piece,), 55.0)


def test_bars_show_the_slices_of_every_gpu() -> None:
    (bar,) = bars_of(day(power_w=100, follows=False)[0], {"digits/svc": "svc"})
    assert bar.plain == "[                svc svc svc]"


def test_each_change_sets_the_grid_clock() -> None:
    grid = Grid("US-CAL", speedup=1440)
    grid.change(MIDNIGHT, 200.0, seen_s=10.0)
    assert grid.now(10.5) == MIDNIGHT + timedelta(minutes=12)
    grid.change(MIDNIGHT + timedelta(minutes=30), 190.0, seen_s=11.3)
    assert grid.now(11.3) == datetime(2026, 3, 20, 0, 30, tzinfo=UTC)
    assert grid.intensity_gco2e_per_kwh == 190.0
