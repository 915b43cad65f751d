"""Model objects of Kubernetes: applied, changed, refused, deleted, as by a person with kubectl."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from services.kit.config import Deployment
from services.kit.config.loader import ConfigError, load
from services.kit.kubernetes import Cluster
from services.planner import assembly
from services.planner.kubernetes import model_objects
from tests.support import kubernetes_api
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner, reload
from tests.support.kubernetes_api import KubernetesApi
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

MODELS = "/apis/cinquefoil.io/v1alpha1/namespaces/models/models"
MAPS = "/api/v1/namespaces/models/configmaps"
EVENTS = "/apis/events.k8s.io/v1/namespaces/models/events"
ROLE = {
    *((verb, "models") for verb in ("list", "watch")),
    ("patch", "models/status"),
    ("patch", "configmaps"),
    ("create", "events"),
}
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


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesApi]:
    """An API server with the chart's Role and ConfigMap, which the planner reaches."""
    account = kubernetes_api.account(tmp_path)
    async with KubernetesApi.running() as api:
        api.rights = ROLE
        await api.apply(MAPS, {"metadata": {"name": "suite-models"}})
        reached = partial(Cluster.reached, folder=account, url=api.url)
        monkeypatch.setattr(assembly, "Cluster", type("_", (), {"reached": reached}))
        monkeypatch.setattr(model_objects, "_STATUS_S", 0.1)
        yield api


def written(folder: Path, grid: Grid) -> Deployment:
    """A deployment file with one model of its own, and those of Model objects."""
    made = deployment(folder, grid.port)
    path = folder / "cinquefoil.yaml"
    found: dict[str, Any] = made.model_dump(mode="json", exclude_unset=True)
    found["models_file"] = "models.yaml"
    found["planner"] |= {
        "database": str(folder / "planner.sqlite3"),
        "kubernetes": {"models_map": "suite-models"},
    }
    path.write_text(yaml.safe_dump(found))
    return load(path)


@asynccontextmanager
async def kubelet(
    api: KubernetesApi, file: Path, stub: PlannerServiceAsyncStub
) -> AsyncIterator[None]:
    """Mount the ConfigMap: its changes are in the file a moment later, and are read."""

    async def mount() -> None:
        seen: dict[str, str] = {}
        while True:
            data: dict[str, str] = api.objects[MAPS]["suite-models"].get("data", {})
            if data != seen:
                seen = data
                (file.parent / "models.yaml").write_text(data["models.yaml"])
                await reload(stub, load(file))
            await asyncio.sleep(0.02)

    task = asyncio.create_task(mount())
    yield
    assert not task.done(), task.result()
    task.cancel()


def status(api: KubernetesApi, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.objects[MODELS][name].get("status", {})
    return found


def conditions(api: KubernetesApi, name: str) -> dict[str, tuple[str, str]]:
    found = status(api, name).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in found}


async def test_a_model_is_served_changed_refused_and_deleted_by_its_object(
    tmp_path: Path, grid: Grid, api: KubernetesApi
) -> None:
    """Columns and conditions follow; a wrong spec leaves what was served; 410 is survived."""
    made = written(tmp_path, grid)
    assert made.source is not None
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(made) as stub, living(agent, stub), kubelet(api, made.source, stub):
        await active(stub, 1)
        api.full.add("full")  # older, so its status is written before those of all others
        await api.apply(MODELS, {"metadata": {"name": "full"}, "spec": {"slo": {}}})
        await api.apply(MODELS, {"metadata": {"name": "letters"}, "spec": SPEC})
        await until(lambda: conditions(api, "letters").get("Ready") == ("True", "Serving"))
        await until(lambda: "plan" in status(api, "letters"))
        found = status(api, "letters")
        assert (found["variant"], found["objective"]) == ("small", "200 ms")
        assert found["replicas"] > 0
        assert conditions(api, "letters")["Accepted"] == ("True", "Valid")
        await until(lambda: EVENTS in api.objects)
        (event, *_) = api.objects[EVENTS].values()
        assert event["regarding"]["name"] == "letters"
        assert re.match(r"plan \d+: \d+ x small; ", event["note"])

        api.rights = set()  # all calls fail, and then work again
        await api.end_watches()
        refused = len(api.calls)
        await until(lambda: len(api.calls) > refused + 1)
        api.rights = ROLE
        await api.compact()
        slower = {**SPEC, "slo": {"latency_s": 0.4}}
        await api.apply(MODELS, {"metadata": {"name": "letters"}, "spec": slower})
        await until(lambda: status(api, "letters")["objective"] == "400 ms")

        wrong = {**SPEC, "slo": {"latency_s": -1}}
        await api.apply(MODELS, {"metadata": {"name": "letters"}, "spec": wrong})
        await until(lambda: conditions(api, "letters")["Accepted"] == ("False", "Invalid"))
        (why,) = (
            each["message"]
            for each in status(api, "letters")["conditions"]
            if each["type"] == "Accepted"
        )
        assert why.startswith("spec.slo.latency_s: ")
        assert status(api, "letters")["objective"] == "400 ms"

        await api.apply(MODELS, {"metadata": {"name": "digits"}, "spec": SPEC})
        await until(lambda: "Accepted" in conditions(api, "digits"))
        assert conditions(api, "digits")["Accepted"] == ("False", "Invalid")
        assert "models_file" in status(api, "digits")["conditions"][0]["message"]
        await api.delete(MODELS, "letters")
        await until(lambda: not api.objects[MAPS]["suite-models"]["data"]["models.yaml"])
    assert {*api.calls} <= ROLE


def test_a_model_in_both_files_is_refused_by_name(tmp_path: Path, grid: Grid) -> None:
    file = written(tmp_path, grid).source
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"digits": SPEC}))
    assert file is not None
    with pytest.raises(ConfigError, match=r"models\.digits: given twice: in this file"):
        load(file)
