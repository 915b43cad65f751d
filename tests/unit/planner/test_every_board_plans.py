"""Every real product name has a plan, also where no profile was measured on it."""

import pytest

from services.kit.hardware.boards import DriverReading, identify
from services.kit.hardware.gpu_types import whole_geometry
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import Profile
from services.planner.core.model import Gpu, GpuType, Model, Pool, Variant
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact
from tests.support.boards import READINGS
from tests.support.planner import fleets

PROFILES = {
    "analytic": AnalyticProfile(0.5, memory_mib=512),
    "language": LanguageProfile.of(0.5, answer_tokens=16.0),
}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("reading", READINGS, ids=lambda each: each.product_name)
def test_a_board_serves_with_profiles_that_were_not_measured(
    reading: DriverReading, profile: Profile
) -> None:
    """All of a small demand is served in time by the exact plan on one such board."""
    board = identify(reading)
    geometry = whole_geometry(
        compute_slices=7, sm_count=board.sm_count, memory_bytes=reading.memory_bytes
    )
    kind = GpuType(
        board.name,
        geometry,
        board.sm_count,
        board.idle_power_w,
        board.context_power_w,
        board.max_power_w,
        performance=board.performance,
    )
    model = Model("m", 5.0, 95.0, 0.2, (Variant("v", 1.0, profile),))
    problem = fleets.problem([Gpu("GPU-1", "node", Pool(kind, "Z", 1.0, 200.0))], [model])

    assert score(problem, exact(problem)).unserved_rps == {"m": 0.0}
