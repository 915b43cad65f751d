"""Power limit of a board over its slices: what plans promise while all of them are busy."""

from itertools import product

import pytest

from services.kit.config import Objective
from services.kit.hardware.gpu_types import curve_of
from services.kit.mig import maximal_layouts
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.table import Point, TableProfile
from services.planner.core.model import Model, SegmentKind, Variant
from services.planner.core.problem import catalog
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from tests.support.planner import fleets

POOL = fleets.pool()
LIMIT_W = POOL.type.max_power_w
BATCH_S = 0.02


def measured(power_w: float, demand_rps: float = 1000.0) -> Model:
    """A model measured on a slice of one GPC and one of three, each by itself, W per GPC."""
    points = {
        (POOL.type.name, name, 1, 1.0): (Point(8, BATCH_S, gpcs * power_w * BATCH_S),)
        for name, gpcs in (("1g.5gb", 1), ("3g.20gb", 3))
    }
    profile = TableProfile(points, AnalyticProfile(5.7))
    return Model("vision", 0.5, 95.0, demand_rps, (Variant("v", 80.0, profile),))


def kinds_of(power_w: float) -> dict[str, SegmentKind]:
    kinds = catalog.build([measured(power_w)], [POOL], Objective(), (8,), 1)
    return {kind.profile: kind for kind in kinds}


def busy_w(kind: SegmentKind) -> float:
    return kind.throughput_rps * kind.energy_j


@pytest.mark.parametrize("power_w", [20.0, 60.0, 90.0])
def test_no_layout_of_busy_slices_draws_more_than_the_board_may(power_w: float) -> None:
    """Slices that were measured at 90 W each would take 685 W of a board's 400 W."""
    kinds = kinds_of(power_w)
    for layout in maximal_layouts(POOL.type.geometry):
        held = [kinds[place.profile] for place in layout if place.profile in kinds]
        assert POOL.type.context_power_w + sum(map(busy_w, held)) <= LIMIT_W + 1e-3


def test_a_slice_is_as_slow_as_the_clock_that_its_board_falls_to() -> None:
    """At 60 W on each of seven slices the board has 345 W: no higher clock would keep to it."""
    hot, cool = kinds_of(60.0)["1g.5gb"], kinds_of(20.0)["1g.5gb"]
    assert cool.latency_s == BATCH_S
    curve = curve_of(POOL.type.performance)
    part_w = (LIMIT_W - POOL.type.context_power_w) / 7
    ratios = [step / 20 for step in range(6, 21)]
    fits = max(ratio for ratio in ratios if 60.0 * curve.power_ratio(ratio) <= part_w)
    assert fits < 1.0
    assert hot.latency_s == pytest.approx(BATCH_S * curve.time_ratio(fits))
    assert hot.throughput_rps == pytest.approx(8 / hot.latency_s)


@pytest.mark.parametrize("strategy", ["exact", "annealing"])
def test_more_gpus_serve_what_one_at_its_limit_cannot(strategy: str) -> None:
    """Seven slices at full clock would serve 2,000 req/s; those of one board at 400 W do not."""
    alone_rps = 0.7 * 7 * 8 / BATCH_S
    model = measured(90.0, demand_rps=alone_rps)
    found = {}
    for gpus in (1, 2):
        problem = fleets.problem(
            fleets.fleet((POOL, gpus)), [model], batch_sizes=(8,), max_processes=1
        )
        judged = score(problem, REGISTRY[strategy](problem))
        assert judged.power_w <= gpus * LIMIT_W
        found[gpus] = judged.unserved_rps["vision"]
    assert found[1] > 0.01 * alone_rps
    assert found[2] < 1e-6 * alone_rps


def test_the_built_in_profiles_keep_every_boards_limit() -> None:
    """They divide a board's power among its slices: their figures are those of its full clock."""
    model = fleets.model(slo_s=10.0)
    for name, size in product(("a100-40gb", "h100-80gb", "a30", "t4"), (1, 32)):
        pool = fleets.pool(name)
        kinds = catalog.build([model], [pool], Objective(), (size,), 1)
        assert kinds
        for kind in kinds:
            variant = next(each for each in model.variants if each.name == kind.variant)
            shape = pool.type.shape(pool.type.geometry.kind(kind.profile))
            cost = variant.profile.batch(shape, size, 1)
            assert cost is not None
            assert kind.latency_s == cost.latency_s
