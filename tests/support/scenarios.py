"""A small scenario that tests change."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.simulator.loader import Setting, read

SMALL: Mapping[str, Any] = {
    "version": "v1",
    "duration_s": 120,
    "detail": "full",
    "policies": ["base"],
    "deployment": {
        "version": "v1",
        "carbon": {"zones": {"Z": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200}}}},
        "nodes": {"n": {"zone": "Z", "simulated": ["a100-40gb"]}},
        "models": {
            "m": {
                "slo": {"latency_s": 0.4},
                "demand_rps": 40,
                "variants": {
                    name: {
                        "file": f"{name}.onnx",
                        "accuracy": accuracy,
                        "profile": {"kind": "analytic", "gmacs_per_item": gmacs},
                    }
                    for name, accuracy, gmacs in (("small", 0.8, 4), ("large", 0.9, 40))
                },
            }
        },
    },
}

ScenarioOf = Callable[..., Setting]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`, mappings merged key by key."""
    found = dict(base)
    for key, value in changes.items():
        old = found.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            found[key] = merged(old, value)
        else:
            found[key] = value
    return found


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Mapping[str, Any]], Path]:
    """Return a function that writes the small scenario with changes."""

    def write(changes: Mapping[str, Any]) -> Path:
        path = tmp_path / "scenario.yaml"
        path.write_text(yaml.safe_dump(merged(SMALL, changes), sort_keys=False))
        return path

    return write


@pytest.fixture
def scenario(write: Callable[[Mapping[str, Any]], Path]) -> ScenarioOf:
    """Return a function that reads the small scenario with changes."""

    def scenario(**changes: Any) -> Setting:
        return read(write(changes))

    return scenario
