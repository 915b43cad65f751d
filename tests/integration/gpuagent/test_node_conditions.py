"""Faults of its machine that the agent reports as conditions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec, SegmentState
from services.gpuagent import node_conditions
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Segment
from services.gpuagent.node_conditions import NodeConditions
from services.gpuagent.node_place import place_of
from services.kit.config import Deployment
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE

SPEC = SegmentSpec("s-1", "digits", "large", 32, 2, "GPU-a", Placement(WHOLE, 0))


def conditions(
    folder: Path,
    changed: Callable[[], None] = lambda: None,
    *segments: Segment,
    network: Mapping[str, str] | None = None,
    **node: Any,
) -> NodeConditions:
    variant = {
        **(network or {"file": str(folder / "large.onnx")}),
        "accuracy": 0.9,
        "profile": {"kind": "analytic", "gmacs_per_item": 1},
    }
    settings = {"zone": "Z", "state_dir": str(folder), "simulated": ["t4"], **node}
    deployment = Deployment.model_validate(
        {
            "version": "v1",
            "carbon": {"zones": {"Z": {"source": {"kind": "synthetic"}}}},
            "nodes": {"n": settings},
            "model_cache": {"folder": str(folder)},
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
    return NodeConditions(deployment, place, changed, lambda: segments)


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


async def test_a_file_that_is_still_to_be_fetched_is_named_with_the_command(tmp_path: Path) -> None:
    network = {"uri": "https://models.example/large.onnx", "sha256": "0" * 64}
    seen = conditions(tmp_path, network=network)
    await seen.look()

    (missing,) = seen.found
    assert missing.kind.name == "MODEL_FILE_MISSING"
    assert missing.setting == "models.digits.variants.large.uri"
    assert "`cinquefoil models fetch digits` brings it" in missing.sentence


async def test_a_file_of_another_digest_is_named_until_it_is_the_right_one(tmp_path: Path) -> None:
    """The file is read again when it has changed; the agent's first look reads none."""
    right = b"weights"
    file = tmp_path / "large.onnx"
    file.write_bytes(b"others")
    network = {"file": str(file), "sha256": sha256(right).hexdigest()}
    seen = conditions(tmp_path, network=network)
    await seen.look(digests=False)
    first = seen.found
    await seen.look()
    await seen.look()

    assert not first
    (damaged,) = seen.found
    assert damaged.kind.name == "MODEL_FILE_DAMAGED"
    assert network["sha256"] in damaged.sentence

    file.write_bytes(right)
    await seen.look()
    assert seen.found == ()


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
    why = "an item's 'y' depends on the other items of its batch"
    segment = Segment(SPEC, SegmentState.READY, ("h:1",), 0, max_batch=1, alone_reason=why)
    seen = conditions(tmp_path, lambda: None, segment)
    await seen.look()

    (fixed,) = seen.found
    assert (fixed.kind.name, fixed.setting) == (
        "FIXED_BATCH",
        "models.digits.variants.large.max_batch",
    )
    assert fixed.sentence.startswith(f"large of digits takes one request at a time: {why}; ")


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


async def test_a_gpu_without_a_table_is_named_as_estimated(tmp_path: Path) -> None:
    """Once for all boards of the type; boards of known chips are none."""
    seen = conditions(tmp_path)
    known = gpu_types.load("a30")
    strange = replace(known, name="nvidia-gb10", product_name="NVIDIA GB10")
    (tmp_path / "large.onnx").touch()
    seen.gpus = tuple(
        GpuInfo(f"GPU-{index}", index, model, False, (), 0)
        for index, model in enumerate((known, strange, strange))
    )
    await seen.look()

    (estimated,) = seen.found
    assert (estimated.kind.name, estimated.subject) == ("GPU_ESTIMATED", "gpu/nvidia-gb10")
    assert "NVIDIA GB10 has no table" in estimated.sentence
    assert "estimated from a30" in estimated.sentence
