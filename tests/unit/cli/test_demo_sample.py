"""What the demo reads off a plan and the grid."""

from datetime import UTC, datetime, timedelta

import pytest

from cinquefoil.gpuagent.v1.inventory_pb2 import Placement, SegmentSpec
from cinquefoil.planner.v1 import plan_pb2
from services.cli.demo.progress import layout
from services.cli.demo.sample import Grid, shares_of, slices_of
from tests.support.cli.demo_days import MIDNIGHT, day


def routes(**shares: float) -> plan_pb2.RoutingTable:
    instances = [
        plan_pb2.Instance(variant=name.split("_")[0], share=share) for name, share in shares.items()
    ]
    other = plan_pb2.ModelRoutes(model="cats", instances=[plan_pb2.Instance(share=1)])
    digits = plan_pb2.ModelRoutes(model="digits", instances=instances)
    return plan_pb2.RoutingTable(models=[other, digits])


def test_shares_are_summed_by_variant_and_normalised() -> None:
    """During a rollout the shares of what serves may not sum to one."""
    assert shares_of(routes(svc_1=0.25, svc_2=0.25, linear_1=0.3)) == pytest.approx(
        {"svc": 0.625, "linear": 0.375}
    )
    assert shares_of(routes()) == {}


def test_slices_are_counted_by_variant_and_profile() -> None:
    segments = [
        plan_pb2.PlannedSegment(
            spec=SegmentSpec(variant=variant, placement=Placement(profile=profile))
        )
        for variant, profile in (("svc", "3g.20gb"), ("svc", "3g.20gb"), ("linear", "1g.5gb"))
    ]
    assert slices_of(plan_pb2.Plan(segments=segments)) == {
        ("svc", "3g.20gb"): 2,
        ("linear", "1g.5gb"): 1,
    }


def test_a_layout_reads_as_variants_with_shares_and_slices() -> None:
    assert layout(day(power_w=100, follows=False)[0]) == "svc 100 % (2x 3g.20gb)"


def test_each_change_sets_the_grid_clock() -> None:
    grid = Grid("US-CAL", speedup=1440)
    grid.change(MIDNIGHT, 200.0, seen_s=10.0)
    assert grid.now(10.5) == MIDNIGHT + timedelta(minutes=12)
    grid.change(MIDNIGHT + timedelta(minutes=30), 190.0, seen_s=11.3)
    assert grid.now(11.3) == datetime(2026, 3, 20, 0, 30, tzinfo=UTC)
    assert grid.intensity_gco2e_per_kwh == 190.0
