"""Settings that workers get from their agent, and the users who can read them."""

import os
from pathlib import Path

import pytest

from services.gpuagent import settings
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.supervision import processes
from services.gpuagent.worker.external_server import Server
from services.kit.config import ExternalRuntime, Node
from services.kit.errors import FailedPrecondition
from tests.support.waiting import until


async def test_a_worker_sees_nothing_of_its_agents_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the agent's environment it gets what is on a list: a database's password is not."""
    monkeypatch.setenv("CINQUEFOIL_PLANNER__DATABASE", "postgresql://u:hunter2@db/plans")
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=hunter2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    monkeypatch.setenv("HF_HOME", "/models/hf")
    monkeypatch.setenv("LANG", "C.UTF-8")
    started = processes.start(
        tmp_path / "none.json", tmp_path / "log", {"CUDA_VISIBLE_DEVICES": ""}
    )
    try:
        await until(lambda: processes._MODULE in started._process.cmdline())  # not our copy
        environment = started._process.environ()
    finally:
        await started.end(0)

    assert not [name for name, value in environment.items() if "hunter2" in value]
    assert environment["LANG"] == "C.UTF-8"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert environment["HF_HOME"] == "/models/hf"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_spec_is_its_owners_alone(tmp_path: Path) -> None:
    """A spec holds the environment of an external server."""
    secret = ExternalRuntime(
        kind="external", command=("x", "{port}"), environment={"TOKEN": "hunter2"}
    )
    spec = WorkerSpec(
        segment_id="s", model="m", variant="v", file=Path("m.onnx"), batch_size=1,
        slice_uuid="MIG-1", costs=None, runtime=secret,
    )  # fmt: skip
    path = tmp_path / "workers" / "s.0.json"
    spec.save(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_what_is_printed_of_a_server_has_no_key() -> None:
    assert "hunter2" not in f"{Server('127.0.0.1:1', api_key='hunter2')}"


@pytest.mark.parametrize(("user", "found"), [("nobody", 65534), ("65534", 65534), ("61234", 61234)])
def test_a_root_agent_s_workers_run_as_the_user_of_the_deployment(
    monkeypatch: pytest.MonkeyPatch, user: str, found: int
) -> None:
    """By name or number, of which the machine need not know."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    node = Node(zone="Z", worker_user=user)
    ids = settings.worker_user_of(node, "n")
    assert ids is not None
    assert ids[0] == found


@pytest.mark.parametrize(
    ("agent", "user", "why"),
    [
        (1000, "nobody", "only an agent that is root"),
        (0, "no-such-user", "there is no user"),
    ],
)
def test_a_user_that_workers_cannot_become_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, agent: int, user: str, why: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: agent)
    with pytest.raises(FailedPrecondition, match=rf"nodes\.n\.worker_user: {why}"):
        settings.worker_user_of(Node(zone="Z", worker_user=user), "n")
