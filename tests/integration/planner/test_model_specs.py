"""Specs of Model objects, some of them hostile: what the deployment takes of them."""

from __future__ import annotations

import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.planner.kubernetes.model_objects import MOST_MODELS, _accepted
from tests.support.fake_agent import deployment

SPEC: dict[str, Any] = {
    "slo": {"latency_s": 0.2},
    "demand_rps": 60,
    "variants": {
        "small": {
            "file": "small.onnx",
            "accuracy": 90,
            "profile": {"kind": "analytic", "gmacs_per_item": 1},
        }
    },
}
FEW = f"at most {MOST_MODELS} Models of 900,000 bytes together"


def of(**changes: Any) -> dict[str, Any]:
    """A spec of a variant with these values."""
    made = deepcopy(SPEC)
    made["variants"]["small"] |= changes
    return made


def large(size: int) -> dict[str, Any]:
    """A valid spec of about so many bytes."""
    command = ["serve", "{port}", "x" * size]
    return of(runtime={"kind": "external", "command": command})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A deployment file with a file of models, which is not there yet."""
    found = deployment(tmp_path, 9).model_dump(mode="json", exclude_unset=True)
    path = tmp_path / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump({**found, "models_file": "models.yaml"}))
    return path


UNREADABLE = of(
    profile={"kind": "table", "path": "/dev/null", "gpu": "a100-40gb", "gmacs_per_item": 1}
)


@pytest.mark.parametrize("changed", [UNREADABLE, large(890_000)], ids=["profile", "size"])
def test_an_old_object_that_becomes_wrong_evicts_no_other(
    file: Path, changed: dict[str, Any]
) -> None:
    """Newer ones stay, although the whole is wrong; the changed one keeps its last spec."""
    before = {"old": SPEC, "a": large(9_000), "b": large(9_000)}

    kept, refused = _accepted(file, {**before, "old": changed}, before)

    assert kept == before
    assert set(refused) == {"old"}


def test_specs_that_are_nested_deep_are_refused_before_they_are_written(file: Path) -> None:
    """YAML's writer would end the planner with a RecursionError, or repeat the indentation."""
    deep: Any = 1
    for _ in range(400):
        deep = [deep]

    kept, refused = _accepted(file, {"deep": of(more=deep), "good": SPEC}, {})

    assert kept == {"good": SPEC}
    assert "more than 16" in refused["deep"]


def test_many_large_specs_take_time_in_proportion_to_what_is_kept(file: Path) -> None:
    """Each of 40 MB of specs is measured once, and those without room are not written as YAML."""
    good, hostile = {"good": SPEC}, {f"m{n}": large(800_000) for n in range(50)}
    began_s = time.process_time()

    kept, refused = _accepted(file, {**hostile, **good}, good)

    assert time.process_time() - began_s < 20
    assert set(kept) == {"good", "m0"}
    assert set(refused.values()) == {FEW}
