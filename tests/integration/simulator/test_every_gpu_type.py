"""Every GPU type with every kind of profile: it serves, or `config check` refuses it by name."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.cli.config.check import check
from services.kit.config.loader import load
from services.kit.hardware import gpu_types
from services.simulator.loader import read
from services.simulator.report.figures import figures
from services.simulator.run import draw_arrivals, simulate

EXTERNAL = {"kind": "openai", "address": "127.0.0.1:1"}
PROFILES: Mapping[str, Mapping[str, Any]] = {
    "analytic": {"profile": {"kind": "analytic", "gmacs_per_item": 1}},
    "language": {
        "profile": {"kind": "language", "parameters_b": 0.5, "answer_tokens": 16},
        "runtime": EXTERNAL,
    },
}


def table(path: Path, gpu: str) -> Mapping[str, Any]:
    """A variant with a measured table of one GPU type: half a second on each of its slices."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("gpu", "profile", "batch_size", "processes", "latency_s"))
        for kind in gpu_types.load(gpu).offered.kinds:
            rows.writerow((gpu, kind.name, 1, 1, 0.5))
    return {"profile": {"kind": "table", "path": str(path), "gpu": gpu, "gmacs_per_item": 1}}


def deployment(gpu: str, variant: Mapping[str, Any]) -> dict[str, Any]:
    """A light load on two GPUs of a type."""
    file = {} if "runtime" in variant else {"file": "m.onnx"}
    return {
        "version": "v1",
        "carbon": {"zones": {"Z": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200}}}},
        "nodes": {"n": {"zone": "Z", "simulated": [gpu, gpu]}},
        "models": {
            "m": {
                "slo": {"latency_s": 5},
                "demand_rps": 0.4,
                "variants": {"v": {"accuracy": 0.9, **file, **variant}},
            }
        },
    }


@pytest.mark.parametrize("kind", ["analytic", "table", "language"])
@pytest.mark.parametrize("gpu", gpu_types.names())
def test_a_gpu_type_serves_with_every_kind_of_profile(tmp_path: Path, gpu: str, kind: str) -> None:
    """In virtual time: no request is lost."""
    variant = table(tmp_path / "t.csv", gpu) if kind == "table" else PROFILES[kind]
    path = tmp_path / "scenario.yaml"
    scenario = {
        "version": "v1", "duration_s": 30, "detail": "full", "policies": ["exact"],
        "deployment": deployment(gpu, variant),
    }  # fmt: skip
    path.write_text(yaml.safe_dump(scenario))
    simulated = read(path)
    found = figures(simulate(simulated, simulated.scenario.policies[0], draw_arrivals(simulated)))

    assert found.sent > 0
    assert found.lost == 0


@pytest.mark.parametrize(
    "refused",
    ["measured on another type", "too large for any slice"],
)
def test_what_no_gpu_of_a_fleet_can_run_is_refused_by_name(tmp_path: Path, refused: str) -> None:
    """`config check` names the model and the types, before a request is lost."""
    variant: Mapping[str, Any] = {"profile": {"kind": "analytic", "gmacs_per_item": 1}}
    if refused == "measured on another type":
        variant = table(tmp_path / "t.csv", "h100-80gb")
    else:
        variant = {"profile": {**variant["profile"], "memory_mib": 1e6}}
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(deployment("b200-180gb", variant)))
    (tmp_path / "m.onnx").touch()

    (mistake,) = check(file, load(file))
    assert mistake.where == "models.m.variants"
    assert mistake.message == "no variant was profiled on b200-180gb, or none fits there"
