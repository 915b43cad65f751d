"""Every GPU type with every kind of profile: it serves, or `config check` refuses it by name."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.cli.config.check import check
from services.kit.config.loader import ConfigError, load
from services.kit.hardware import gpu_types
from services.simulator.loader import read
from services.simulator.report.figures import figures
from services.simulator.run import draw_arrivals, simulate

EXTERNAL = {"kind": "openai", "address": "127.0.0.1:1"}
HOLDS = " x h100-80gb of one node would hold it"
UNCUT = "nodes.<n>.allow_mig_mode: false"
WHOLE = {"allow_mig_mode": False}
SOME: Mapping[int, dict[str, Any]] = {n: {"simulated": ["h100-80gb"] * n} for n in (2, 4)}
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


@pytest.mark.parametrize(
    ("node", "variants", "where", "why"),
    [
        (SOME[2], {"70b": (70, 1)}, "", f"2{HOLDS}, with {UNCUT}: gpus: 2"),
        (SOME[2], {"235b": (235, 1)}, "", f"8{HOLDS}, and the largest has 2"),
        (SOME[4], {"70b": (70, 4)}, "", f"4{HOLDS}, with {UNCUT}"),
        (
            SOME[2] | WHOLE,
            {"8b": (8, 1), "70b": (70, 4)},
            ".70b",
            f"4{HOLDS}, and the largest has 2",
        ),
        (SOME[2], {"9000b": (9000, 1)}, "", "or none fits there"),
    ],
)
def test_a_language_model_that_no_node_holds_is_refused_with_what_would(
    tmp_path: Path,
    node: Mapping[str, Any],
    variants: Mapping[str, tuple[float, int]],
    where: str,
    why: str,
) -> None:
    """By `config check` and by `simulate`, which else would lose every request."""
    given = {
        name: {
            "accuracy": 0.9,
            "gpus": count,
            "profile": {"kind": "language", "parameters_b": size},
            "runtime": EXTERNAL,
        }
        for name, (size, count) in variants.items()
    }
    settings = deployment("h100-80gb", {})
    settings["nodes"]["n"] |= node
    settings["models"]["m"] |= {"variants": given, "slo": {"latency_s": 60}}
    file, scenario = tmp_path / "cinquefoil.yaml", tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(settings))
    whole = {"version": "v1", "duration_s": 30, "policies": ["exact"], "deployment": settings}
    scenario.write_text(yaml.safe_dump(whole))

    (mistake,) = check(file, load(file))

    assert mistake.where == f"models.m.variants{where}"
    assert mistake.message.endswith(why)
    with pytest.raises(ConfigError) as refused:
        read(scenario)
    assert why in str(refused.value)


def test_a_model_on_four_gpus_is_simulated_as_one(tmp_path: Path) -> None:
    """No request is lost, and each of the four draws its part."""
    settings = deployment("h100-80gb", {})
    settings["nodes"]["n"] |= {"simulated": ["h100-80gb"] * 4, "allow_mig_mode": False}
    settings["models"]["m"] = {
        "slo": {"latency_s": 60, "ttft_s": 4, "tpot_s": 0.1},
        "demand_rps": 2,
        "variants": {
            "70b": {
                "accuracy": 0.9,
                "gpus": 4,
                "profile": {"kind": "language", "parameters_b": 70, "kv_kib_per_token": 320},
                "runtime": EXTERNAL,
            }
        },
    }
    path = tmp_path / "scenario.yaml"
    given = {"version": "v1", "duration_s": 60, "detail": "full", "policies": ["exact"]}
    path.write_text(yaml.safe_dump({**given, "deployment": settings}))
    simulated = read(path)

    seen = simulate(simulated, simulated.scenario.policies[0], draw_arrivals(simulated))
    found = figures(seen)

    assert found.sent > 60
    assert found.lost == 0
    idle_w = gpu_types.load("h100-80gb").context_power_w
    assert found.idle_j == pytest.approx(4 * idle_w * 60, rel=0.05), "all four are held"
    assert found.active_j > 60 * 4 * 20
