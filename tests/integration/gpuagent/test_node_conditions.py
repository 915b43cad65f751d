"""What the agent finds wrong with its machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.gpuagent import node_conditions
from services.gpuagent.core.model import Segment
from services.gpuagent.node_conditions import NodeConditions
from services.gpuagent.node_place import place_of
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.mig import WHOLE, Placement
from services.kit.segment import SegmentSpec, SegmentState

SPEC = SegmentSpec("s-1", "digits", "large", 32, 2, "GPU-a", Placement(WHOLE, 0))


def conditions(
    folder: Path, changed: Callable[[], None] = lambda: None, *segments: Segment, **node: Any
) -> NodeConditions:
    variant = {
        "file": str(folder / "large.onnx"),
        "accuracy": 0.9,
        "profile": {"kind": "analytic", "gmacs_per_item": 1},
    }
    settings = {"zone": "Z", "state_dir": str(folder), "simulated": ["t4"], **node}
    deployment = Deployment.model_validate(
        {
            "version": "v1",
            "carbon": {"zones": {"Z": {"source": {"kind": "synthetic"}}}},
            "nodes": {"n": settings},
            "models": {
                "digits": {
                    "slo": {"latency_s": 1},
                    "demand_rps": 1,
                    "variants": {"large": variant},
                }
            },
        }
    )
    place = place_of(deployment, "n")
    place.folder.mkdir()
    return NodeConditions(deployment, place, RealClock(), changed, lambda: segments)


async def test_a_missing_file_is_named_until_it_is_there(tmp_path: Path) -> None:
    """Each change is reported once."""
    changes: list[int] = []
    seen = conditions(tmp_path, lambda: changes.append(1))
    await seen.look()
    await seen.look()
    (missing,) = seen.found
    assert (missing.kind.name, missing.setting) == (
        "MODEL_FILE_MISSING",
        "models.digits.variants.large.file",
    )
    assert str(tmp_path / "large.onnx") in missing.sentence

    (tmp_path / "large.onnx").write_bytes(b"")
    await seen.look()

    assert seen.found == ()
    assert len(changes) == 2


async def test_a_disk_that_is_nearly_full_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.onnx").write_bytes(b"")
    monkeypatch.setattr(node_conditions, "_MIN_FREE_MIB", 2**40)
    seen = conditions(tmp_path)
    await seen.look()

    assert [each.kind.name for each in seen.found] == ["DISK_FULL"]


async def test_a_file_of_one_request_at_a_time_is_named_where_plans_count_on_batches(
    tmp_path: Path,
) -> None:
    (tmp_path / "large.onnx").write_bytes(b"")
    segment = Segment(SPEC, SegmentState.READY, ("h:1",), 0, max_batch=1)
    seen = conditions(tmp_path, lambda: None, segment)
    await seen.look()

    (fixed,) = seen.found
    assert (fixed.kind.name, fixed.setting) == (
        "FIXED_BATCH",
        "models.digits.variants.large.max_batch",
    )


async def test_a_real_gpu_without_its_libraries_is_named_before_any_plan(tmp_path: Path) -> None:
    (tmp_path / "large.onnx").write_bytes(b"")
    seen = conditions(tmp_path, simulated=None, control=True)
    await seen.look()

    assert [each.kind.name for each in seen.found] == ["PROVIDER_MISSING"]


async def test_state_that_cannot_be_written_or_was_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "large.onnx").write_bytes(b"")
    seen = conditions(tmp_path)
    seen.unsaved = lambda: "cannot write energy.json: Read-only file system"
    aside = tmp_path / "n" / "energy" / "GPU.json.damaged-20261123T040000Z"
    aside.parent.mkdir()
    aside.touch()
    await seen.look()

    assert {each.kind.name: each.sentence for each in seen.found} == {
        "STATE_DAMAGED": f"state was damaged, set aside and begun again: {aside}",
        "DISK_FULL": "cannot write energy.json: Read-only file system",
    }
