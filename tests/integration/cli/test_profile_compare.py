"""`cinquefoil gpuagent profile`: where two tables differ, and which models and slices it knows."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu
from services.cli.main import app
from services.cli.profile.request import Request, grid, grid_of_texts, targets
from services.kit.config import Deployment, Planner
from services.kit.errors import InvalidArgument, NotFound
from services.kit.profiles.core.measurement import Fingerprint, Measurement
from services.kit.profiles.table_file import write_table

ROWS = [
    Measurement("t4", "whole", size, 1, latency_s=0.1 * size, energy_j=1.0 * size, batches=9)
    for size in (1, 2, 4)
]


def test_the_command_says_where_tables_differ(tmp_path: Path) -> None:
    """Exit status 3 where they do; the machines are named."""
    one, other = tmp_path / "a.csv", tmp_path / "b.parquet"
    machine = Fingerprint("t4", "Tesla T4", driver="1.2")
    write_table(one, machine, ROWS)
    write_table(other, replace(machine, driver="3.4"), [replace(ROWS[0], latency_s=0.15)])
    run = CliRunner().invoke
    same = run(app, ["gpuagent", "profile", "--compare", str(one), str(one)])
    differs = run(app, ["gpuagent", "profile", "--compare", str(one), str(other)])
    absent = run(app, ["gpuagent", "profile", "--compare", str(one), str(tmp_path / "none.csv")])

    assert (same.exit_code, differs.exit_code, absent.exit_code) == (0, 3, 1)
    assert "no point differs by more than 5%" in same.output
    assert "driver 1.2" in differs.output
    assert "driver 3.4" in differs.output
    assert "1.50 x" in differs.output
    assert "none.csv" in absent.output


GPU = Gpu(uuid="GPU-1", clock_lockable=True)
GPU.type.name, GPU.type.max_clock_mhz = "t4", 1000
GPU.type.profiles.add(name="whole", starts=[0])


def test_unknown_slices_and_models_are_named(deployment: Callable[..., Deployment]) -> None:
    known = deployment({})
    with pytest.raises(NotFound, match=r"t4 has whole, not '1g\.5gb'"):
        grid(Request(("m",), slices=("1g.5gb",)), Planner(), GPU)
    with pytest.raises(NotFound, match="no model 'm'; it has digits"):
        targets(Request(("m",)), known)
    with pytest.raises(NotFound, match="no variant 'huge'; it has small"):
        targets(Request(("digits/huge",)), known)


def test_a_model_stands_for_all_its_variants(deployment: Callable[..., Deployment]) -> None:
    """Each once, however often it is named; twice the SLO is too slow."""
    found = targets(Request(("digits", "digits/small")), deployment({}))
    assert [(each.model, each.variant) for each in found] == [("digits", "small")]
    assert found[0].limits.too_slow_s == pytest.approx(0.4)


def test_a_language_model_needs_a_language_profile_and_has_prompts_of_its_own(
    deployment: Callable[..., Deployment],
) -> None:
    """Named without one it is refused, and left out of all; no text is too slow to be measured."""
    server = {"kind": "openai", "command": ["serve", "{port}"]}
    profiles = {
        "texts": {"kind": "language", "parameters_b": 1},
        "plain": {"kind": "analytic", "gmacs_per_item": 1},
    }
    variants = {
        name: {"accuracy": 0.5, "runtime": server, "profile": profile}
        for name, profile in profiles.items()
    }
    chat = {"slo": {"latency_s": 1}, "demand_rps": 1, "variants": variants}
    known = deployment({"models": {"chat": chat}})

    with pytest.raises(InvalidArgument, match=r"chat\.variants\.plain\.profile must be"):
        targets(Request(("chat",)), known)
    (found,) = (each for each in targets(Request(()), known) if each.model == "chat")
    assert (found.variant, found.texts, found.limits.too_slow_s) == ("texts", True, math.inf)
    points = grid_of_texts(Request((), prompts=(9, 3)), grid(Request(()), Planner(), GPU))
    assert {point.prompt_tokens for point in points.points()} == {3, 9}
    assert {(point.processes, point.clock_mhz) for point in points.points()} == {(1, 0)}
    with pytest.raises(InvalidArgument, match="--prompts: must be 1 or more, got 0"):
        grid_of_texts(Request((), prompts=(0,)), points)
