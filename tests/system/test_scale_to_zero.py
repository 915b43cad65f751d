"""A model without requests on real workers: parked, and started again for its first request."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import yaml

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from inference.grpc_service_pb2 import ModelReadyRequest, ServerReadyRequest
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.carbon import app as carbon
from services.gpuagent import app as gpuagent
from services.kit.config import Deployment
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.rpc import dial
from services.kit.telemetry import logs
from services.planner import app as planner
from services.router import app as router
from tests.support.cli.fake_services import cinquefoil
from tests.support.worker.worker_process import infer_request, save_model

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

log = logs.get("test")


def deployment(folder: Path) -> Deployment:
    """A model that is parked two seconds after its last request."""

    def listen() -> dict[str, str]:
        return {"listen": f"127.0.0.1:{free_port()}"}

    zone = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 100}}
    variant = {
        "file": str(save_model(folder / "tiny.onnx")),
        "accuracy": 0.9,
        "profile": {"kind": "analytic", "gmacs_per_item": 0.1},
    }
    data = {
        "version": "v1",
        "carbon": {**listen(), "zones": {"Z": zone}},
        "planner": {
            **listen(),
            "database": str(folder / "planner.sqlite3"),
            "triggers": {"min_interval_s": 1, "settle_s": 0.1, "scale_down_s": 2},
            "load_forecast": {"interval_s": 1},
        },
        "router": listen(),
        "nodes": {
            "n": {
                **listen(),
                "zone": "Z",
                "simulated": ["t4"],
                "state_dir": str(folder / "state"),
            }
        },
        "models": {
            "m": {
                "slo": {"latency_s": 1.0},
                "demand_rps": 20,
                "demand_min_rps": 0,
                "variants": {"v": variant},
            }
        },
    }
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(data))
    return load(path)


async def test_the_first_request_of_a_parked_model_is_answered_by_the_worker_that_it_starts(
    tmp_path: Path,
) -> None:
    """It waits with its deadline; meanwhile router and model are ready, and status says why."""
    settings, stop = deployment(tmp_path), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for service in (carbon, planner, gpuagent, router):
            tasks.create_task(service.run(settings, stop), name=service.__name__)
        async with dial(settings.planner.dial) as to_planner, dial(settings.router.dial) as channel:
            stub, client = PlannerServiceStub(to_planner), GRPCInferenceServiceStub(channel)
            await client.ModelInfer(infer_request([[1.0, 2.0]]), timeout=60, wait_for_ready=True)
            async with asyncio.timeout(60):
                while True:
                    plan = (await stub.GetPlan(planner_pb2.GetPlanRequest())).plan
                    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
                    running = [each for node in fleet.nodes for each in node.node.segments]
                    if not plan.segments and not running:
                        break
                    await asyncio.sleep(0.05)
            shown = await cinquefoil("status", "--config", tmp_path / "cinquefoil.yaml")
            assert (await client.ServerReady(ServerReadyRequest())).ready
            assert (await client.ModelReady(ModelReadyRequest(name="m"))).ready
            began_s = time.monotonic()
            answer = await client.ModelInfer(infer_request([[1.0, 2.0]]), timeout=60)
            log.info("first request of a parked model", seconds=time.monotonic() - began_s)
            stop.set()

    assert answer.parameters["model_variant"].string_param == "v"
    assert "no requests, parked" in " ".join(shown.out.split())
