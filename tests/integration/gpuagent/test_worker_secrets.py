"""What workers are told of their agent, and who can read it."""

from pathlib import Path

import pytest

from services.gpuagent.core.worker_spec import External, WorkerSpec
from services.gpuagent.supervision import processes


async def test_a_worker_sees_nothing_of_its_agents_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the agent's environment it gets what is on a list: a database's password is not."""
    monkeypatch.setenv("CINQUEFOIL_PLANNER__DATABASE", "postgresql://u:hunter2@db/plans")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    started = processes.start(
        tmp_path / "none.json", tmp_path / "log", {"CUDA_VISIBLE_DEVICES": ""}
    )
    try:
        environment = started._process.environ()
    finally:
        await started.end(0)

    assert not [name for name, value in environment.items() if "hunter2" in value]
    assert environment["LANG"] == "C.UTF-8"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_spec_is_its_owners_alone(tmp_path: Path) -> None:
    """It holds the environment of an external server."""
    secret = External(environment=(("TOKEN", "hunter2"),))
    spec = WorkerSpec(
        segment_id="s", model="m", variant="v", file=Path("m.onnx"), batch_size=1,
        slice_uuid="MIG-1", costs=None, external=secret,
    )  # fmt: skip
    path = tmp_path / "workers" / "s.0.json"
    spec.save(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
