"""The same scenario live, at the pace of the clock, and in virtual time: the same plans."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cinquefoil.planner.v1 import plan_pb2
from services.kit.config import Deployment
from services.kit.net import free_port
from services.simulator.loader import read
from services.simulator.run import draw_arrivals, simulate
from tests.support.fake_agent import Grid, active, planner
from tests.support.gpuagent.agent_service import NODE, agent
from tests.support.planner.planner_questions import listed
from tests.support.scenarios import SMALL, merged

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

INTENSITIES = (20.0, 900.0, 20.0)
"""Of a clean grid, then of a dirty one, and back: each changes the best mix."""

STEP_S = 60

Made = list[tuple[int, str, dict[str, int]]]
"""Version, cause, and segments by variant and slice of each plan."""


def document(folder: Path, model: Path) -> dict[str, Any]:
    """Return the sections of the deployment that both run."""
    changes = {
        "nodes": {"n": {"simulated": ["a100-40gb"] * 2}},
        "models": {"m": {"variants": {name: {"file": str(model)} for name in ("small", "large")}}},
        "planner": {
            "strategy": "exact",
            "objective": {"carbon_weight": 0.3},
            "triggers": {"min_interval_s": 0, "settle_s": 0.2, "intensity_dwell_s": 0},
            "database": str(folder / "planner.sqlite3"),
        },
    }
    found = merged(SMALL["deployment"], changes)
    node = {"listen": "127.0.0.1:0", "state_dir": str(folder)}
    found["nodes"] = {NODE: found["nodes"]["n"] | node}
    return found


async def made_live(sections: dict[str, Any], grid: Grid) -> Made:
    """Run planner and agent; the grid changes whenever the plan before is active."""
    address = f"127.0.0.1:{free_port()}"
    live = merged(
        sections, {"carbon": {"listen": f"127.0.0.1:{grid.port}"}, "planner": {"listen": address}}
    )
    deployment = Deployment(**live)
    grid.intensity.publish(INTENSITIES[0])
    async with planner(deployment) as stub, agent(deployment):
        for version, intensity in enumerate(INTENSITIES, start=1):
            grid.intensity.publish(intensity)
            await active(stub, version)
        return await plans(stub)


async def plans(stub: PlannerServiceAsyncStub) -> Made:
    found: list[plan_pb2.Plan] = sorted((await listed(stub)).plans, key=lambda plan: plan.version)
    return [
        (
            plan.version,
            plan.reason,
            Counter(f"{s.spec.variant} on {s.spec.placement.profile}" for s in plan.segments),
        )
        for plan in found
    ]


def made_in_virtual_time(sections: dict[str, Any], folder: Path) -> Made:
    rows = [f"2026-01-01T00:{minute:02d}:00Z,{each}" for minute, each in enumerate(INTENSITIES)]
    trace = folder / "grid.csv"
    trace.write_text("\n".join(("timestamp,carbon_intensity_gco2e_per_kwh", *rows)))
    scenario = folder / "scenario.yaml"
    scenario.write_text(
        yaml.safe_dump(
            {
                "version": "v1",
                "deployment": sections,
                "duration_s": STEP_S * len(INTENSITIES) - 1,
                "policies": ["exact"],
                "carbon": {"Z": {"kind": "trace", "path": str(trace), "loop": False}},
                "load": {"m": {"kind": "constant", "rate_rps": 0}},
            },
            sort_keys=False,  # strategies break ties by the order of the variants
        )
    )
    setting = read(scenario)
    record = simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))
    return [(plan.version, plan.reason, dict(plan.slices)) for plan in record.plans]


@pytest.mark.timeout(120)
@pytest.mark.may_block  # the test itself simulates
async def test_the_same_plans_are_made_live_and_in_virtual_time(
    tmp_path: Path, model: Path, grid: Grid
) -> None:
    """A real planner and agent with worker processes, against the simulation of the scenario."""
    sections = document(tmp_path, model)

    live = await made_live(sections, grid)

    assert live == made_in_virtual_time(sections, tmp_path)
    assert [reason.partition(":")[0] for _, reason, _ in live] == ["first plan", "carbon", "carbon"]
    assert live[0][2] == live[2][2] != live[1][2]
