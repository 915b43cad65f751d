"""The same scenario live and in virtual time: the simulator says what the suite does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cinquefoil.planner.v1 import planner_pb2
from services.simulator.device import gpu_type
from services.simulator.loader import read
from services.simulator.report.figures import Figures, figures
from services.simulator.run import draw_arrivals, simulate
from tests.support.running_suite import SHARED, Running

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(240)]

SECONDS, RATE_RPS = 20, 40
SETTLE_S = 1.5
"""Agents report energy twice a second: after it the last answer's is in the account."""


@pytest.fixture(scope="module")
def config(config: Path) -> Path:
    """The folder's deployment, on a grid that stands still, with only the largest variants.

    Their batches take a tenth of a second and more, so that the noise of a busy machine does not
    matter, and the plan mixes slices, batch sizes and processes.
    """
    data = yaml.safe_load(config.read_text())
    for zone in data["carbon"]["zones"].values():
        zone["source"] = {"kind": "static", "intensity_gco2e_per_kwh": 200.0}
    data["planner"]["objective"] = {"carbon_weight": 0.1, "accuracy_floor": 0.995}
    data["models"]["digits"]["demand_rps"] = RATE_RPS * 1.5  # above its busiest second: one plan
    config.write_text(yaml.safe_dump(data))
    return config


@dataclass(frozen=True)
class Meter:
    """Return the energy that the agents have metered, J."""

    total_j: float
    idle_j: float

    def __sub__(self, before: Meter) -> Meter:
        return Meter(self.total_j - before.total_j, self.idle_j - before.idle_j)


async def meter(running: Running) -> Meter:
    """Read the account of every GPU."""
    await asyncio.sleep(SETTLE_S)
    fleet = await running.planner.GetFleet(planner_pb2.GetFleetRequest(), timeout=5)
    gpus = [gpu for node in fleet.nodes for gpu in node.energy]
    return Meter(sum(gpu.total_j for gpu in gpus), sum(gpu.idle_j for gpu in gpus))


def simulated(config: Path, sent_s: list[float]) -> Figures:
    """Simulate the same deployment with the requests as they were sent."""
    log = config.with_name("log.csv")
    log.write_text("\n".join(["arrival_s", *map(str, sent_s)]))
    scenario = config.with_name("scenario.yaml")
    document: dict[str, Any] = {
        "version": "v1",
        "deployment": config.name,
        "duration_s": SECONDS + 2.0,
        "detail": "full",
        "policies": ["exact"],
        "load": {"digits": {"kind": "recorded", "path": log.name}},
    }
    scenario.write_text(yaml.safe_dump(document))
    setting = read(scenario)
    return figures(simulate(setting, setting.scenario.policies[0], draw_arrivals(setting)))


async def test_energy_and_latency_agree_with_the_live_suite(running: Running, config: Path) -> None:
    """Energy within 5 %, p95 within 10 %, for the same requests at the same moments.

    A machine that is busy with other things answers later, and nothing makes it answer earlier.
    """
    before = await meter(running)
    report = await running.load(SECONDS, RATE_RPS)
    spent = await meter(running) - before

    found = await asyncio.to_thread(simulated, config, report["sent_s"])

    assert report["answered"] == report["sent"] == found.sent == found.models["digits"].answered
    # The live meters also ran before and after the load: idle, at a power that is known.
    a100 = gpu_type("a100-40gb")
    idle_power_w = a100.context_power_w + a100.idle_power_w  # all segments fit on one of the two
    assert found.idle_j == pytest.approx(idle_power_w * (SECONDS + 2.0))
    assert spent.idle_j + found.active_j == pytest.approx(spent.total_j, rel=0.05)
    live_p95_s = float(np.percentile(report["latencies_s"], 95))
    p95_s = found.models["digits"].p95_s
    assert p95_s is not None
    assert 0.7 * live_p95_s <= p95_s <= 1.1 * live_p95_s
