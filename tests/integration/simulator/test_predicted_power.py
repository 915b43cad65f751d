"""The power that a plan predicts is what simulated meters show, also where most GPUs wait."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.simulator.loader import read
from services.simulator.run import draw_arrivals, simulate
from services.simulator.stats.sampled_intervals import SampledInterval

GPUS = 8
FULL_RPS = 5000.0
"""About the load of the large variant that eight H100 can serve in time without batches."""


def metered_w(interval: SampledInterval) -> float:
    """Mean power of the fleet over an interval, W."""
    drawn_j = sum(interval.spent.idle_j.values()) + sum(interval.spent.active_j.values())
    return drawn_j / (interval.end_s - interval.begin_s)


@pytest.mark.parametrize("batch_sizes", [[1], [1, 2, 4, 8, 16, 32]], ids=["single", "batches"])
@pytest.mark.parametrize("load", [0.1, 0.2, 0.3])
def test_predicted_power_is_what_eight_h100_draw(
    write: Callable[[Mapping[str, Any]], Path], load: float, batch_sizes: list[int]
) -> None:
    """Within 5 % of the meters from 10 to 30 % of the load that the fleet can serve."""
    changes = {
        "policies": ["exact"],
        "load": {"m": {"kind": "constant", "rate_rps": load * FULL_RPS}},
        "deployment": {
            "nodes": {"n": {"simulated": ["h100-80gb"] * GPUS}},
            "models": {"m": {"demand_rps": load * FULL_RPS, "max_queue": 10_000}},
            "planner": {"batch_sizes": batch_sizes},
        },
        "duration_s": 25,
    }
    setting = read(write(changes))
    found = simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))
    last = found.plans[-1]

    assert last.degraded == ""
    assert last.power_w == pytest.approx(metered_w(found.intervals[-1]), rel=0.05)
