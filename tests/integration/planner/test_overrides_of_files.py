"""Settings that operators change at run time, in deployments as files describe them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from cinquefoil.planner.v1.records import ChangedSetting
from services.kit.config import Deployment
from services.kit.config.loader import load
from services.planner.core.overrides import overridden, still_valid

ROOT = Path(__file__).parents[3]
FILES = [
    ROOT / "cinquefoil.yaml",
    ROOT / "demo.yaml",
    *(ROOT / "deploy" / each for each in ("compose/cinquefoil.yaml", "systemd/cinquefoil.yaml")),
    *sorted((ROOT / "examples").glob("*/cinquefoil.yaml")),
]
RICH: dict[str, Any] = {
    "version": "v1",
    "log_level": "warning",
    "models_file": "models.yaml",
    "tls": {"certificate_file": "tls.crt", "key_file": "tls.key", "ca_file": "ca.crt"},
    "access": {
        "roles": {"operator": ["ada"]},
        "tokens": {"jwks_file": "jwks.json", "issuer": "i", "audience": "a"},
    },
    "carbon": {
        "listen": "0.0.0.0:8461",
        "address": ["carbon-a:8461", "carbon-b:8461"],
        "zones": {
            "DE": {
                "source": [
                    {"kind": "electricity-maps", "zone": "DE", "key_file": "key"},
                    {"kind": "watttime", "username": "u", "region": "DE", "key_env": "WT",
                     "signal_type": "co2_aoer"},
                    {"kind": "static", "intensity_gco2e_per_kwh": 300},
                ]
            },
            "FR": {"source": {"kind": "mqtt", "topic": "grid/FR"}},
        },
    },
    "nodes": {"cores": {"zone": "FR", "cpu": {"cores": 4}}},
    "join": {
        "zone": "DE",
        "zone_of_topology": {"eu-1": "FR"},
        "names": ["gpu-*"],
        "networks": ["10.0.0.0/8"],
        "mps": {"timeout_s": 5},
        "workers": {"memory_limit_mib": 4096},
    },
    "node": {"name": "gpu-1"},
    "models": {
        "digits.v1": {
            "slo": {"latency_s": 0.5},
            "demand_rps": 10,
            "variants": {
                "small": {
                    "file": "small.onnx",
                    "accuracy": 0.9,
                    "profile": {"kind": "analytic", "gmacs_per_item": 2},
                },
                "large": {
                    "file": "large.onnx",
                    "accuracy": 0.95,
                    "profile": {"kind": "analytic", "gmacs_per_item": 20},
                },
            },
        }
    },
    "model_cache": {"folder": "cache"},
    "sites": {"hall": {"nodes": ["cores", "gpu-*"], "power_budget_w": 5000, "host_power_w": 150}},
    "grid": {
        "levels": {1: 0.8, 2: 0.5},
        "emergency_level": 2,
        "mqtt": True,
        "openadr": {
            "utility": {
                "url": "https://vtn.example/openadr3/3.1.0",
                "site": "hall",
                "client_id": "c",
                "client_secret_file": "secret",
                "lost_limit_w": 3000,
            }
        },
    },
    "planner": {
        "listen": "0.0.0.0:8462",
        "standby": True,
        "address": ["planner-a:8462", "planner-b:8462"],
        "objective": {"carbon_weight": 0.3, "goals": {"fewest_gpus": 1}},
        "triggers": {"settle_s": 5},
        "horizon": {"length_s": 21_600},
    },
    "router": {
        "listen": "0.0.0.0:8464",
        "token_listen": "0.0.0.0:8474",
        "quotas": {"ada": {"rate_rps": 5}},
        "routing_file": "routes.json",
    },
    "rpc": {"transport": "grpcio"},
    "predictor": {"cache": {"file": "cache.sqlite3"}},
    "batch": {"max_lines": 100},
    "regions": {
        "name": "north",
        "peers": {
            "south": {"planner": "planner-s:8462", "router": "router-s:8464", "max_rps": 50},
        },
        "min_saving": 0.1,
    },
    "console": {"listen": "0.0.0.0:8467", "token_file": "tokens"},
    "mqtt": {"broker": "broker:1883"},
}  # fmt: skip


@pytest.fixture(params=[str(file.relative_to(ROOT)) for file in FILES] + ["rich"])
def described(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    """Each deployment file of the project, and one with every section."""
    if request.param != "rich":
        return load(ROOT / request.param)
    path = tmp_path / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(RICH))
    return load(path)


def settable(deployment: Deployment) -> Iterator[tuple[str, Any]]:
    """Yield some settings that operators may change, of each model and the objective."""
    yield "planner.strategy", "annealing"
    yield "planner.objective.carbon_weight", 0.25
    yield "planner.objective.goals.fewest_gpus", 3.0
    for name in deployment.models:
        yield f"models.{name}.demand_rps", 12.5
        yield f"models.{name}.slo.latency_s", 0.75
        yield f"models.{name}.overload_weight", 2.0


def test_the_rich_file_has_every_section() -> None:
    """A section that is added later is tried as well."""
    assert RICH.keys() == Deployment.model_fields.keys()


def test_every_setting_changes_alone_and_survives_a_restart(described: Deployment) -> None:
    """Whatever else the file says, the defaults of its sections are not taken as given."""
    for path, value in settable(described):
        changed = overridden(described, {path: value})
        before, after = described.model_dump(), changed.model_dump()
        for data in (before, after):
            _drop(data, path)
        assert after == before
        at = datetime(2026, 11, 27, tzinfo=UTC)
        kept, dropped = still_valid(described, {path: ChangedSetting(path, value, "ada", at)})
        assert (list(kept), dropped) == ([path], {})


def test_a_model_is_removed_from_every_file_that_has_two(described: Deployment) -> None:
    names = list(described.models)
    if len(names) > 1:
        assert list(overridden(described, {f"models.{names[0]}": None}).models) == names[1:]


def test_a_default_that_only_became_absolute_stays_a_default(described: Deployment) -> None:
    """Sections that a file leaves out do not count as given after paths were resolved."""
    given = described.model_fields_set - {"carbon", "models"}
    text = described.source.read_text() if described.source else ""
    for section in given - {"planner", "node", "model_cache"}:  # with default paths in them
        assert f"\n{section}:" in f"\n{text}", section


def _drop(data: dict[str, Any], path: str) -> None:
    """Remove the setting at a path; names of models may contain dots."""
    while path:
        key = max((each for each in data if f"{path}.".startswith(f"{each}.")), key=len)
        path = path[len(key) + 1 :]
        if not path:
            del data[key]
        else:
            data = data[key]
