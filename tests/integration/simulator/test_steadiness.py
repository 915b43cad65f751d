"""The planner comes to rest where a profile is wrong: `benchmarks.steadiness` in short."""

import pytest

from services.simulator.run import draw_arrivals, simulate
from tests.support.scenarios import ScenarioOf

TIGHT = {"batch_sizes": [1, 2], "max_processes": 1}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("slowdown", [1.3, 2.2])
def test_a_profile_that_is_too_kind_is_corrected_once_and_the_objective_kept_from_then_on(
    scenario: ScenarioOf, slowdown: float
) -> None:
    """Learned lengths stay: the minutes after the first ones are calm, and in time."""
    setting = scenario(
        duration_s=1200,
        policies=["exact"],
        slowdown={"m": slowdown},
        load={"m": {"kind": "constant", "rate_rps": 12}},
        deployment={
            "models": {"m": {"demand_rps": 12, "slo": {"latency_s": 0.4}}},
            "planner": {**TIGHT, "objective": {"max_utilisation": 0.95, "accuracy_floor": 1}},
        },
    )
    seen = simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))
    later = [each for each in seen.intervals if each.begin_s >= 600]
    latencies_s = [latency_s for each in later for latency_s in each.latency_s["m"]]

    assert len(seen.plans) <= 3
    assert all(plan.decided_s < 600 for plan in seen.plans)
    assert not any(each.failures for each in later)
    assert sum(latency_s > 0.4 for latency_s in latencies_s) <= 0.05 * len(latencies_s)
