"""Objects of Kubernetes that the planner changes: numbers of servers, and marks of nodes."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.kit import config
from services.kit.kubernetes import Cluster, Refused
from services.planner import assembly
from services.planner.kubernetes import parked_nodes, scaled_servers
from services.planner.kubernetes.parked_nodes import changes
from tests.support import kubernetes_api
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner
from tests.support.kubernetes_api import KubernetesApi
from tests.support.planner.planner_client import Router
from tests.support.waiting import until

NODES = "/api/v1/nodes"
DEPLOYMENTS = "/apis/apps/v1/namespaces/models/deployments"
STATEFUL = "/apis/apps/v1/namespaces/models/statefulsets"
GROUPS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/ai/leaderworkersets"
SERVICES = "/apis/serving.kserve.io/v1beta1/namespaces/ai/inferenceservices"


def with_servers(folder: Path, grid: Grid) -> config.Deployment:
    """Digits on two nodes, one of which is enough; chat by servers of objects of each kind."""
    nodes = ("node-a", "node-b")
    parks = config.Kubernetes(parked_nodes=True)
    made = deployment(folder, grid.port, nodes, strategy="exact", kubernetes=parks)
    pool = {"variant": "v", "gpu": "a100-40gb", "zone": "Z", "slots": 8, "replicas_max": 9}
    service = {"kind": "InferenceService", "name": "llama", "namespace": "ai"}
    chat = config.Model.model_validate(
        {
            "slo": {"latency_s": 20},
            "demand_rps": 1,
            "variants": {
                "v": {
                    "accuracy": 98,
                    "profile": {"kind": "language", "parameters_b": 8},
                    "runtime": {"kind": "openai", "address": "127.0.0.1:1"},
                }
            },
            "servers": {
                "here": {**pool, "replicas_min": 1, "scale": {"name": "vllm"}},
                "there": {**pool, "replicas_min": 2, "scale": service},
                "three": {
                    **pool,
                    "replicas_min": 3,
                    "replicas_max": 3,
                    "scale": {"kind": "StatefulSet", "name": "sglang"},
                },
                "groups": {
                    **pool,
                    "replicas_min": 2,
                    "replicas_max": 2,
                    "scale": {"kind": "LeaderWorkerSet", "name": "tp", "namespace": "ai"},
                },
                "gone": {**pool, "replicas_min": 2, "scale": {"name": "nobody"}},
            },
        }
    )
    return made.model_copy(update={"models": {**made.models, "chat": chat}})


async def test_numbers_of_servers_are_set_and_empty_nodes_are_marked(
    tmp_path: Path, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with reports of load; a person's other number is set back; rights are for named objects.

    A node that serves is kept from autoscalers, one that does not is theirs.
    """
    account = kubernetes_api.account(tmp_path)
    monkeypatch.setattr(scaled_servers, "_CHECK_S", 0.1)
    async with KubernetesApi.running() as api:
        api.rights = {
            (verb, resource)
            for verb in ("get", "patch")
            for resource in (
                "deployments/scale",
                "statefulsets/scale",
                "leaderworkersets/scale",
                "inferenceservices",
                "nodes",
            )
        }
        reached = partial(Cluster.reached, folder=account, url=api.url)
        monkeypatch.setattr(assembly, "Cluster", type("_", (), {"reached": reached}))
        for name in ("node-a", "node-b"):
            await api.apply(NODES, {"metadata": {"name": name}, "spec": {}})
        await api.apply(DEPLOYMENTS, {"metadata": {"name": "vllm"}, "spec": {"replicas": 5}})
        await api.apply(STATEFUL, {"metadata": {"name": "sglang"}, "spec": {"replicas": 1}})
        group = {"replicas": 4, "leaderWorkerTemplate": {"size": 2}}
        await api.apply(GROUPS, {"metadata": {"name": "tp"}, "spec": group})
        predictor = {"minReplicas": 1, "model": {}}
        llama = {"metadata": {"name": "llama"}, "spec": {"predictor": predictor}}
        await api.apply(SERVICES, llama)

        def replicas() -> int:
            return int(api.objects[DEPLOYMENTS]["vllm"]["spec"]["replicas"])

        def marks() -> list[bool]:
            nodes = api.objects[NODES].values()
            return sorted(parked_nodes.MARK in each["metadata"].get("labels", {}) for each in nodes)

        one, other = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
        made = with_servers(tmp_path, grid)
        grid.intensity.publish(100.0)
        async with planner(made) as stub, living(one, stub), living(other, stub):
            await active(stub, 1)
            assert replicas() == 5
            router = Router(stub)
            router.say(0, arrivals=5)
            await until(lambda: 1 <= replicas() < 5)
            wanted = replicas()
            await api.apply(DEPLOYMENTS, {"metadata": {"name": "vllm"}, "spec": {"replicas": 7}})
            await until(lambda: replicas() == wanted)
            expected = {"minReplicas": 2, "maxReplicas": 2, "model": {}}
            await until(lambda: api.objects[SERVICES]["llama"]["spec"]["predictor"] == expected)
            await until(lambda: api.objects[STATEFUL]["sglang"]["spec"]["replicas"] == 3)
            await until(lambda: api.objects[GROUPS]["tp"]["spec"] == {**group, "replicas": 2})
            await until(lambda: marks() == [False, True])
            nodes = [each["metadata"] for each in api.objects[NODES].values()]
            (serving,) = (each for each in nodes if not each.get("labels"))
            assert set(serving["annotations"].values()) == {"true"}
            router.call.cancel()


def test_marks_leave_what_others_set() -> None:
    """Taints of others and an operator's own annotation stay; marking twice changes nothing."""
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    own = {"karpenter.sh/do-not-disrupt": "true"}
    node: dict[str, Any] = {"metadata": {"annotations": own}, "spec": {"taints": [taint]}}
    parked = kubernetes_api.merged(node, changes(node, parked=True))
    assert [each["key"] for each in parked["spec"]["taints"]] == [
        "nvidia.com/gpu",
        parked_nodes.MARK,
    ]
    assert parked["metadata"]["annotations"] == own
    assert not changes(parked, parked=True)
    kept = kubernetes_api.merged(parked, changes(parked, parked=False))
    assert kept["spec"]["taints"] == [taint]
    assert parked_nodes.MARK not in kept["metadata"]["labels"]
    assert not changes(kept, parked=False)
    again = kubernetes_api.merged(kept, changes(kept, parked=True))
    assert parked_nodes.KEPT not in again["metadata"]["annotations"]


@pytest.mark.parametrize(("conflicts", "marked"), [(4, True), (1000, False)])
async def test_a_node_that_others_change_is_tried_a_few_times_in_turn(
    tmp_path: Path, conflicts: int, marked: bool
) -> None:
    """Then the session ends, and its reconnector's pause applies: no end of calls to a busy API."""
    account = kubernetes_api.account(tmp_path)
    async with KubernetesApi.running() as api:
        await api.apply(NODES, {"metadata": {"name": "n"}, "spec": {}})
        api.conflicts = conflicts
        async with Cluster.reached("x", "y", account, api.url) as cluster:
            with nullcontext() if marked else pytest.raises(Refused, match="409"):
                await parked_nodes.mark(cluster, "n", parked=True)

    assert api.calls.count(("patch", "nodes")) == 5
    assert ("labels" in api.objects[NODES]["n"]["metadata"]) is marked
