"""Agents that announce themselves from network namespaces of their own, as pods have them."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from benchmarks._secured import secure
from benchmarks.chaos.namespaces import HOST, Namespace, namespaces, unavailable
from cinquefoil.planner.v1.planner_pb2 import GetFleetRequest, GetPlanRequest
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.router.v1.router_pb2 import GetStatusRequest
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.config.loader import load
from services.kit.rpc import dial
from services.kit.telemetry import logs
from services.local.pki import Identity
from services.local.up.health import until_answering
from services.local.up.process import Program
from services.local.up.suite import Suite
from tests.support.cli.fake_services import cinquefoil
from tests.support.worker.worker_process import infer_request, save_model

log = logs.get("test")

SHARED = "agents"  # the name in the certificates that pods share


def agent(pod: Namespace, config: Path, tls: Tls | None) -> Program:
    """Return the agent of a pod, with the environment that the chart gives it."""
    environment = [
        f"CINQUEFOIL_NODE__NAME={pod.name}",
        f"CINQUEFOIL_NODE__ADDRESS={pod.address}:8463",
    ]
    folder = f"{config.parent}/pki/{{service}}/joined"
    files = {"CERTIFICATE_FILE": "tls.crt", "KEY_FILE": "tls.key", "CA_FILE": "ca.crt"}
    if tls is not None:
        environment += [f"CINQUEFOIL_TLS__{key}={folder}/{files[key]}" for key in files]
    command = (sys.executable, "-P", "-m", "services.cli", "gpuagent", "serve", "--join")
    argv = (*pod.prefix, "env", *environment, *command, "--with-parent", "--config", str(config))
    return Program(f"agent-{pod.name}", argv, f"{pod.address}:8463", tls)


@pytest.fixture
def pods() -> Iterator[list[Namespace]]:
    if why := unavailable():
        pytest.skip(why)
    with namespaces("abc") as found:
        yield found


def deployment(folder: Path) -> Path:
    """Write a deployment that names no node, and wants each model on three."""
    document = {
        "version": "v1",
        "carbon": {
            "listen": f"{HOST}:8461",
            "zones": {"Z": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 100.0}}},
        },
        "planner": {
            "listen": f"{HOST}:8462",
            "database": str(folder / "planner.sqlite3"),
            "triggers": {"min_interval_s": 0.5, "settle_s": 0.2},
        },
        "router": {"listen": f"{HOST}:8464", "http_listen": "", "worker_dead_after_s": 2.0},
        "console": {"listen": ""},
        "join": {
            "listen": "0.0.0.0:8463",
            "zone": "Z",
            "simulated": ["t4"],
            "state_dir": str(folder / "state"),
            "leave_timeout_s": 0.0,
        },
        "models": {
            "m": {
                "slo": {"latency_s": 1.0},
                "demand_rps": 1.0,
                "replicas_min": 3,
                "spread": "node",
                "variants": {
                    "v": {
                        "file": str(save_model(folder / "tiny.onnx")),
                        "accuracy": 0.9,
                        "profile": {"kind": "analytic", "gmacs_per_item": 0.1},
                    }
                },
            }
        },
    }
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.system
@pytest.mark.timeout(240)
async def test_agents_join_serve_are_cut_off_and_replaced_with_no_file_touched(
    tmp_path: Path, pods: list[Namespace]
) -> None:
    """Two join by themselves and serve; one loses its network; a third joins and is used.

    Everything is checked by certificates, of which all pods share one as the chart has it, and
    `cinquefoil status` finds who joined.
    """
    a, b, c = pods
    config = deployment(tmp_path)
    authority = secure(config, tmp_path / "pki")
    for role in ("agent", "worker"):  # one certificate for all pods, whose addresses are unknown
        authority.issue(Identity(role, "joined", hosts=(SHARED,)), days=1)
    for role in ("carbon", "planner", "router"):  # here these are dialled by address, too
        authority.issue(Identity(role, hosts=(SHARED,)), days=1)
    document = yaml.safe_load(config.read_text())
    document["tls"]["ip_server_name"] = SHARED
    document["join"]["identities"] = ["spiffe://cinquefoil/agent/joined"]
    config.write_text(yaml.safe_dump(document))
    settings = load(config)
    operator, before = settings.identity("operator"), config.read_bytes()

    async with AsyncExitStack() as stack:
        control = Suite.of(config, tmp_path / "logs")
        agents = [agent(pod, config, operator) for pod in pods]
        first = Suite(agents[:2], tmp_path / "logs", grace_s=0.5)
        third = Suite(agents[2:], tmp_path / "logs", grace_s=0.5)
        await asyncio.gather(*(stack.enter_async_context(each) for each in (control, first)))
        planner = PlannerServiceStub(
            await stack.enter_async_context(dial(settings.planner.dial, operator))
        )
        channel = await stack.enter_async_context(dial(settings.router.dial, operator))
        router, status = GRPCInferenceServiceStub(channel), RouterServiceStub(channel)

        async def answered() -> dict[str, int]:
            """Return how many requests each pod's workers have answered."""
            found = await status.GetStatus(GetStatusRequest())
            instances = [each for model in found.models for each in model.instances]
            return {each.endpoint.rpartition(":")[0]: each.answered for each in instances}

        async def serve_from(*expected: Namespace) -> None:
            """Send requests until workers of these pods have answered some; none may fail."""
            began = await answered()
            while True:
                request = infer_request([[1.0, 2.0]])
                await router.ModelInfer(request, timeout=10)
                now = await answered()
                if all(now.get(p.address, 0) > began.get(p.address, 0) for p in expected):
                    return

        await asyncio.wait_for(until_answering(settings.router.dial, operator), 90)
        await serve_from(a, b)
        shown = await cinquefoil("status", "--json", "--config", config)
        b.cut()
        await serve_from(a)
        await stack.enter_async_context(third)
        await serve_from(a, c)
        fleet = await planner.GetFleet(GetFleetRequest())

    assert {each.node.name for each in fleet.nodes} == {"a", "b", "c"}
    assert shown.status == 0, shown.err
    assert {each["node"] for each in json.loads(shown.out)["gpus"]} == {"a", "b"}
    assert config.read_bytes() == before


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.timeout(240)
async def test_a_machine_that_is_cut_off_is_replaced_before_requests_are_lost(
    tmp_path: Path, pods: list[Namespace]
) -> None:
    """Connections stay half-open, without FIN or RST, and a free machine serves in time.

    None of the requests, which may take 10 s, is lost; when the machine is back, no GPU and no
    segment has two owners.
    """
    a, b, _ = pods
    config = deployment(tmp_path)
    document = yaml.safe_load(config.read_text())
    document["access"] = {"insecure": True}
    document["planner"]["triggers"] = {"settle_s": 0.2}  # the others are as shipped
    document["router"] = {"listen": f"{HOST}:8464", "http_listen": ""}
    document["models"]["m"].update(replicas_min=1, spread="gpu")
    config.write_text(yaml.safe_dump(document))
    settings = load(config)
    async with AsyncExitStack() as stack:
        agents = [agent(pod, config, None) for pod in (a, b)]
        suites = (Suite.of(config, tmp_path / "logs"), Suite(agents, tmp_path / "logs"))
        await asyncio.gather(*(stack.enter_async_context(each) for each in suites))
        planner = PlannerServiceStub(await stack.enter_async_context(dial(settings.planner.dial)))
        channel = await stack.enter_async_context(dial(settings.router.dial))
        router = GRPCInferenceServiceStub(channel)
        await asyncio.wait_for(until_answering(settings.router.dial, None), 90)

        async def serving_pods() -> set[str]:
            """Return the nodes with segments that serve, as the newest plan has them."""
            plan = (await planner.GetPlan(GetPlanRequest())).plan
            return {each.node for each in plan.segments}

        async def answer() -> float:
            began_s = time.monotonic()
            await router.ModelInfer(infer_request([[1.0, 2.0]]), timeout=10)
            return time.monotonic() - began_s

        await answer()
        (serves,) = [pod for pod in (a, b) if pod.name in await serving_pods()]
        requests = []
        serves.cut()
        for _ in range(100):
            requests.append(asyncio.create_task(answer()))
            await asyncio.sleep(0.1)
        took_s = await asyncio.gather(*requests)
        after = await serving_pods()
        serves.mend()
        while True:  # it joins again, with what runs there
            fleet = await planner.GetFleet(GetFleetRequest())
            if all(each.connected for each in fleet.nodes):
                break
            await answer()
        log.info("cut off", first_s=took_s[0], longest_s=max(took_s))

    assert after == {pod.name for pod in (a, b)} - {serves.name}
    assert max(took_s) < 10.0
    owned = [gpu.uuid for each in fleet.nodes for gpu in each.node.gpus]
    segments = [each.spec.segment_id for node in fleet.nodes for each in node.node.segments]
    assert len(owned) == len(set(owned)) == 2
    assert len(segments) == len(set(segments))
