"""Small real gRPC services that say fixed things, and the command line."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import structlog
from google.protobuf.timestamp_pb2 import Timestamp
from typer.testing import CliRunner

from cinquefoil.carbon.v1 import carbon_pb2, carbon_pb2_grpc
from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import history_pb2, plan_pb2, planner_pb2, planner_pb2_grpc
from cinquefoil.regions.v1 import regions_pb2_grpc
from cinquefoil.router.v1 import router_pb2, router_pb2_grpc
from inference import grpc_service_pb2 as oip
from inference import grpc_service_pb2_grpc as oip_grpc
from services.cli.main import app
from services.kit.errors import InvalidArgument, NotFound
from services.kit.net import free_port
from services.kit.rpc import serving
from services.planner.region_servicer import RegionServicer

PLAN = plan_pb2.Plan(
    version=7,
    state=plan_pb2.PLAN_STATE_ACTIVE,
    strategy="exact",
    reason="carbon: US-CAL 210.0 -> 180.5 gCO2e/kWh (-14.0 %)",
    inputs=plan_pb2.PlanInputs(
        intensity_gco2e_per_kwh={"US-CAL": 180.5},
        demand_rps={"digits": 60.0},
        gpus={"a100-40gb": 1},
        carbon_weight=0.2,
    ),
    segments=[
        plan_pb2.PlannedSegment(
            spec=inventory_pb2.SegmentSpec(
                segment_id="s1",
                model="digits",
                variant="svc",
                batch_size=4,
                processes=2,
                gpu_uuid="GPU-1",
                placement=inventory_pb2.Placement(profile="3g.20gb", start=4),
            ),
            node="node-0",
            share=1.0,
            throughput_rps=120,
            latency_s=0.045,
        )
    ],
    prediction=plan_pb2.Prediction(
        objective=12.5,
        accuracy={"digits": 0.9917},
        latency_s={"digits": 0.09},
        power_w=115,
        carbon_gco2e_per_h=20.8,
        gpus=1,
        gap=0.0,
        solve_s=0.04,
    ),
    outcome=plan_pb2.Outcome(
        active_s=10, requests=600, energy_j=1200, carbon_gco2e=0.06, latency_s={"digits": 0.08}
    ),
    steps=4,
    slice_changes=1,
)


class CarbonServicer(carbon_pb2_grpc.CarbonServiceServicer):
    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        one = carbon_pb2.Intensity(
            zone="US-CAL",
            signal=carbon_pb2.SIGNAL_AVERAGE,
            intensity_gco2e_per_kwh=180.5,
            average_gco2e_per_kwh=207.1,
            ratio=0.8716,
            source="synthetic",
        )
        yield carbon_pb2.WatchResponse(snapshot=True, intensities=[one])
        await asyncio.Event().wait()


class PlannerServicer(planner_pb2_grpc.PlannerServiceServicer):
    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield planner_pb2.WatchResponse(plan=PLAN)

    async def GetPlan(self, request: Any, context: Any) -> Any:
        if request.version not in (0, 7):
            raise NotFound(f"no plan has version {request.version}; the newest is 7")
        return planner_pb2.GetPlanResponse(plan=PLAN)

    async def ListPlans(self, request: Any, context: Any) -> Any:
        return planner_pb2.ListPlansResponse(plans=[PLAN][: request.page_size])

    async def GetFleet(self, request: Any, context: Any) -> Any:
        segment = inventory_pb2.Segment(
            spec=PLAN.segments[0].spec, state=inventory_pb2.SEGMENT_STATE_READY
        )
        slices = [
            inventory_pb2.Slice(placement=inventory_pb2.Placement(profile="3g.20gb", start=start))
            for start in (0, 4)
        ]
        kind = inventory_pb2.GpuType(name="a100-40gb")
        gpu = inventory_pb2.Gpu(uuid="GPU-1", type=kind, mig_enabled=True, slices=slices)
        node = inventory_pb2.Node(name="node-0", simulated=True, gpus=[gpu], segments=[segment])
        energy = inventory_pb2.GpuEnergy(gpu_uuid="GPU-1", total_j=1500, power_w=112)
        entry = planner_pb2.FleetNode(node=node, connected=True, energy=[energy])
        return planner_pb2.GetFleetResponse(nodes=[entry], energy_j=1500, carbon_gco2e=0.075)

    async def ListChangedSettings(self, request: Any, context: Any) -> Any:
        return planner_pb2.ListChangedSettingsResponse()

    async def ListGridEvents(self, request: Any, context: Any) -> Any:
        return planner_pb2.ListGridEventsResponse()

    async def ReadAccount(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for model, joules in (("", 500.0), ("digits", 1000.0)):
            entry = planner_pb2.AccountEntry(
                model=model,
                energy_j=joules,
                idle_j=0.0 if model else joules,
                carbon_gco2e=joules * 5e-5,
                idle_gco2e=0.0 if model else joules * 5e-5,
                base_carbon_gco2e=joules * 1e-4,
                requests=600 if model else 0,
            )
            entry.hour.FromSeconds(1_772_323_200)
            yield planner_pb2.ReadAccountResponse(entries=[entry])

    async def ReadHistory(self, request: Any, context: Any) -> AsyncIterator[Any]:
        end_s = request.until.seconds // 600 * 600
        points = [
            history_pb2.HistoryPoint(
                since=Timestamp(seconds=end_s - 600 * n),
                fleet=history_pb2.FleetHistory(
                    metered_s=600, energy_j=60_000, base_energy_j=90_000, routed_s=600
                ),
                models={"digits": history_pb2.ModelHistory(arrived=6000, slo_latency_s=0.2)},
            )
            for n in (3, 1)
        ]
        yield planner_pb2.ReadHistoryResponse(step_s=600, points=points)


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    async def GetStatus(self, request: Any, context: Any) -> Any:
        instances = [
            router_pb2.InstanceStatus(variant="svc", share=0.5, connected=connected)
            for connected in (True, False)
        ]
        model = router_pb2.ModelStatus(
            model="digits",
            answered=600,
            failed=0,
            late=2,
            latency_s={"50": 0.041, "95": 0.087},
            slo_latency_s=0.2,
            accuracy=0.9917,
            instances=instances,
        )
        return router_pb2.GetStatusResponse(router_id="r1", models=[model])


class InferenceServicer(oip_grpc.GRPCInferenceServiceServicer):
    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        if request.name != "digits":
            raise NotFound(f"no model {request.name!r}; there are: digits")
        tensor = oip.ModelMetadataResponse.TensorMetadata
        return oip.ModelMetadataResponse(
            name="digits", inputs=[tensor(name="image", datatype="FP32", shape=[-1, 64])]
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        (image,) = request.inputs
        if image.shape[-1] != 64:
            raise InvalidArgument(f"inputs[0].shape: must be [-1, 64], got {list(image.shape)}")
        sums = np.frombuffer(request.raw_input_contents[0], "<f4").reshape(tuple(image.shape))
        labels = (sums.sum(axis=1) % 10).astype("<i8")
        output = oip.ModelInferResponse.InferOutputTensor(
            name="label", datatype="INT64", shape=labels.shape
        )
        return oip.ModelInferResponse(
            model_name="digits",
            outputs=[output],
            raw_output_contents=[labels.tobytes()],
            parameters={
                "model_variant": oip.InferParameter(string_param="svc"),
                "accuracy": oip.InferParameter(double_param=0.9917),
                "energy_j": oip.InferParameter(double_param=1.25),
                "carbon_gco2e": oip.InferParameter(double_param=0.0000627),
                "energy_method": oip.InferParameter(string_param="model"),
            },
        )


def made(kind: Any, *arguments: Any) -> Any:
    """Fakes of the calls that the commands make: the others are UNIMPLEMENTED."""
    return kind(*arguments)


def one_region() -> RegionServicer:
    """The planner's service of regions, of a deployment that has one."""
    alone: Any = SimpleNamespace(led=SimpleNamespace(regions=None))
    return RegionServicer(alone)


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str


async def cinquefoil(*arguments: str | Path, columns: int = 160) -> Ended:
    """Run the command line in this process, in a thread: a process of its own costs a second."""
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    with structlog.testing.capture_logs():  # services in this process must not mix theirs in
        result = await asyncio.to_thread(runner.invoke, app, [*map(str, arguments)])
    return Ended(result.exit_code, result.stdout, result.stderr)


async def cinquefoil_process(*arguments: str | Path) -> Ended:
    """Run the command line as its users do."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"COLUMNS": "160", "PATH": "/usr/bin:/bin", "NO_COLOR": "1"},
    )
    out, err = await process.communicate()
    return Ended(process.returncode or 0, out.decode(), err.decode())


def _write(config: Path, ports: dict[str, int]) -> None:
    config.write_text(
        f"""version: v1
carbon:
  listen: 127.0.0.1:{ports["carbon"]}
  zones:
    US-CAL: {{source: {{kind: synthetic}}}}
nodes:
  node-0: {{zone: US-CAL, simulated: [a100-40gb]}}
models:
  digits:
    slo: {{latency_s: 0.2}}
    demand_rps: 60
    variants:
      svc: {{file: svc.onnx, accuracy: 0.9917, profile: {{kind: analytic, gmacs_per_item: 37}}}}
planner: {{listen: "127.0.0.1:{ports["planner"]}"}}
router: {{listen: "127.0.0.1:{ports["router"]}"}}
"""
    )


@asynccontextmanager
async def suite(
    config: Path, *, without: str = "", servicers: Mapping[str, Any] | None = None
) -> AsyncIterator[None]:
    """Serve the three services, and write the deployment file that names them.

    Args:
        config: The deployment file.
        without: A service that does not run.
        servicers: In place of the usual ones: "carbon", "planner", "router", "inference".
    """
    given = servicers or {}
    ports = {name: free_port() for name in ("carbon", "planner", "router")}
    registrations = {
        "carbon": [
            (
                carbon_pb2_grpc.add_CarbonServiceServicer_to_server,
                given.get("carbon") or made(CarbonServicer),
            )
        ],
        "planner": [
            (
                planner_pb2_grpc.add_PlannerServiceServicer_to_server,
                given.get("planner") or made(PlannerServicer),
            ),
            (regions_pb2_grpc.add_RegionServiceServicer_to_server, one_region()),
        ],
        "router": [
            (
                router_pb2_grpc.add_RouterServiceServicer_to_server,
                given.get("router") or made(RouterServicer),
            ),
            (
                oip_grpc.add_GRPCInferenceServiceServicer_to_server,
                given.get("inference") or made(InferenceServicer),
            ),
        ],
    }
    _write(config, ports)
    async with AsyncExitStack() as stack:
        for name, adds in registrations.items():
            if name == without:
                continue

            def register(server: Any, adds: Any = adds) -> None:
                for add, servicer in adds:
                    add(servicer, server)

            address = f"127.0.0.1:{ports[name]}"
            await stack.enter_async_context(serving(address, register, (), grace_s=0))
        yield
