"""The loop closed, live: models placed by power, clocks governed, against neither.

One agent with two simulated A100s and a worker per segment, as processes; the planner's own
placement says which half of which GPU a model gets. A V100 would hold one segment only: it has no
slices. We stand where the router does, as in `benchmarks.miad.live`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import yaml

from benchmarks import _fleets
from benchmarks._agent import agent, beside
from benchmarks.harness import Row
from benchmarks.miad.live import Live, request
from cinquefoil.gpuagent.v1 import gpuagent_pb2, inventory_pb2
from services.gpuagent.devices.fake_nvml.library import gpu_uuid
from services.kit.config import Deployment, PlacementRule
from services.kit.net import free_port
from services.local.demo import model_family
from services.planner.adapters.model_loader import load_models
from services.planner.core.model import Configuration, Pool, Segment
from services.planner.core.placement.placement import place
from services.planner.core.problem import catalog

NODE: Final = "node-0"
GPU_TYPE: Final = "a100-40gb"
GPUS: Final = (gpu_uuid(NODE, 0, GPU_TYPE), gpu_uuid(NODE, 1, GPU_TYPE))
HALF: Final = "3g.20gb"
SENSITIVITIES: Final = {"bert": 1.0, "gpt": 0.4, "resnet": 0.95, "opt": 0.45}
GMACS_PER_ITEM: Final = 40.0
BATCH_SIZE: Final = 4
RATE_RPS: Final = 20.0
SLO_S: Final = 0.6
PERCENTILE: Final = 99.0
SETTLE_S: Final = 78.0
"""For a dozen steps down: the first takes 300 requests, each of the others five seconds."""

LENGTH_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Way:
    """A case of the comparison. Attributes: placement, loop (the agent's clock loop)."""

    placement: PlacementRule
    loop: bool


WAYS: Final = (Way("least_change", loop=False), Way("power_aware", loop=True))


def measure() -> list[Row]:
    """Return one row per way; ratios are over the first one's power."""
    rows = [asyncio.run(_measured(way)) for way in WAYS]
    base = rows[0]["power_w"]
    return [{**row, "power_ratio": base / row["power_w"]} for row in rows]


async def _measured(way: Way) -> Row:
    with TemporaryDirectory() as folder:
        async with _node(Path(folder), way) as streams:
            await asyncio.sleep(SETTLE_S if way.loop else 2.0)
            power_w, latencies_s = await _watched(streams)
            clocks = await _clocks(streams)
    p99_s = {model: float(np.percentile(found, PERCENTILE)) for model, found in latencies_s.items()}
    return {
        "placement": way.placement,
        "clock_loop": way.loop,
        "power_w": power_w,
        "p99_over_slo": float(np.percentile(np.concatenate([*latencies_s.values()]), PERCENTILE))
        / SLO_S,
        "worst_p99_over_slo": max(p99_s.values()) / SLO_S,
        "clocks_mhz": " ".join(str(mhz) for mhz in clocks),
    }


Streams = dict[str, Live]
"""The load, by model."""


async def _watched(streams: Streams) -> tuple[float, dict[str, list[float]]]:
    """Return the mean power per GPU while LENGTH_S pass, W; and latencies by model, s."""
    began_j, began_s = await _energy_j(streams), time.monotonic()
    await asyncio.sleep(LENGTH_S)
    ended_s = time.monotonic()
    power_w = (await _energy_j(streams) - began_j) / (ended_s - began_s) / len(GPUS)
    return power_w, {name: each.latencies_s(began_s, ended_s) for name, each in streams.items()}


async def _energy_j(streams: Streams) -> float:
    stub = next(iter(streams.values())).agent
    response = await stub.GetEnergy(gpuagent_pb2.GetEnergyRequest())
    return sum(gpu.total_j for gpu in response.gpus)


async def _clocks(streams: Streams) -> list[int]:
    stub = next(iter(streams.values())).agent
    response = await stub.GetNode(gpuagent_pb2.GetNodeRequest())
    return [gpu.clock_mhz for gpu in response.node.gpus]


@asynccontextmanager
async def _node(folder: Path, way: Way) -> AsyncIterator[Streams]:
    """Run an agent with every model under load while the block runs."""
    (folder / "v.onnx").write_bytes(model_family.build("linear"))
    address = f"127.0.0.1:{free_port()}"
    document = _deployment(folder, address, way)
    config = folder / "cinquefoil.yaml"
    config.write_text(yaml.safe_dump(document))
    segments = _placed(Deployment.model_validate(document), way)
    async with agent(config, address) as stub:
        streams, work = await _started(stub, segments)
        async with beside(work):
            yield streams


def _placed(deployment: Deployment, way: Way) -> tuple[Segment, ...]:
    """Return one segment per model, each on half a GPU, where the planner puts them."""
    pool = Pool(_fleets.gpu_type(GPU_TYPE), "z", 1.0, 200.0)
    empty = _fleets.fleet([(pool, len(GPUS))])
    gpus = [replace(gpu, uuid=uuid) for gpu, uuid in zip(empty, GPUS, strict=True)]
    models, objective = load_models(deployment), deployment.planner.objective
    posed = _fleets.problem(gpus, models, objective)
    kinds = [
        kind
        for kind in catalog.build(models, [pool], objective, [BATCH_SIZE], 1)
        if kind.profile == HALF
    ]
    wanted = Configuration(dict.fromkeys(kinds, 1), dict.fromkeys(kinds, 1.0))
    numbers = count()
    return place(replace(posed, placement=way.placement), wanted, lambda: f"s-{next(numbers)}")


async def _started(stub: Any, segments: tuple[Segment, ...]) -> tuple[Streams, list[Any]]:
    """Start the segments at the agent; return the load, and the tasks that must run for it."""
    wanted = gpuagent_pb2.ReconfigureRequest()
    for uuid in GPUS:
        specs = [_spec(segment) for segment in segments if segment.gpu_uuid == uuid]
        slices = [spec.placement for spec in specs]
        wanted.gpus.add(gpu_uuid=uuid, slices=slices, segments=specs)
    await stub.Reconfigure(wanted, wait_for_ready=True, timeout=60)
    response = await stub.GetNode(gpuagent_pb2.GetNodeRequest())
    streams, work = Streams(), list[Any]()
    for seed, segment in enumerate(response.node.segments):
        model = segment.spec.model
        stream = streams[model] = Live(stub, RATE_RPS, request(model), seed)
        work += [stream.send(), *(stream.carry(endpoint) for endpoint in segment.endpoints)]
    return streams, work


def _spec(segment: Segment) -> inventory_pb2.SegmentSpec:
    kind, where = segment.kind, segment.placement
    return inventory_pb2.SegmentSpec(
        segment_id=segment.segment_id,
        model=kind.model,
        variant=kind.variant,
        batch_size=kind.batch_size,
        processes=kind.processes,
        gpu_uuid=segment.gpu_uuid,
        placement=inventory_pb2.Placement(profile=where.profile, start=where.start),
    )


def _deployment(folder: Path, address: str, way: Way) -> dict[str, Any]:
    profile = {"kind": "analytic", "gmacs_per_item": GMACS_PER_ITEM}
    variant = {"file": str(folder / "v.onnx"), "accuracy": 1.0, "profile": profile}
    slo = {"latency_s": SLO_S, "percentile": PERCENTILE}
    node = {
        "zone": "z",
        "simulated": [GPU_TYPE] * len(GPUS),
        "listen": address,
        "state_dir": str(folder / "state"),
        "clock_loop": "miad" if way.loop else "off",
    }
    models = {
        name: {
            "slo": slo,
            "demand_rps": 1,
            "variants": {"v": {**variant, "clock_sensitivity": value}},
        }
        for name, value in SENSITIVITIES.items()
    }
    source = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    return {
        "version": "v1",
        "log_level": "error",
        "carbon": {"zones": {"z": {"source": source}}},
        "planner": {"address": f"127.0.0.1:{free_port()}", "placement": way.placement},
        "nodes": {NODE: node},
        "models": models,
    }
