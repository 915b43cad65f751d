"""A model that has no requests for a while, in virtual time."""

import numpy as np

from services.simulator.report.figures import figures
from services.simulator.run import simulate
from tests.support.scenarios import ScenarioOf

BUSY = np.arange(0.0, 60.0, 0.1)
WOKEN_S = 400.0


def test_a_model_without_requests_is_parked_and_a_later_request_is_answered(
    scenario: ScenarioOf,
) -> None:
    """As the planner does it: the first request of the second stretch waits for its start only."""
    setting = scenario(
        policies=["exact"],
        deployment={
            "models": {"m": {"demand_min_rps": 0}},
            "planner": {"triggers": {"scale_down_s": 60, "min_interval_s": 30}},
        },
        duration_s=460,
    )
    arrivals = {"m": np.concatenate((BUSY, WOKEN_S + BUSY / 2))}

    seen = simulate(setting, setting.scenario.policies[0], arrivals)

    found = figures(seen)
    assert found.lost == 0
    assert found.models["m"].answered == len(arrivals["m"])
    (parked,) = [plan for plan in seen.plans if plan.demand_rps == {"m": 0.0}]
    assert "m has no requests, parked" in parked.reason
    assert 120 <= parked.decided_s <= 200
    woken = next(plan for plan in seen.plans if plan.decided_s > parked.decided_s)
    assert WOKEN_S <= woken.decided_s < WOKEN_S + 0.5
