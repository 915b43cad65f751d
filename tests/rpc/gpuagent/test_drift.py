"""Profiles that are wrong, found by a real agent whose workers are driven by real streams."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from rich.console import Console

from cinquefoil.planner.v1.planner_pb2 import FleetNode, GetFleetResponse
from services.cli.status.document import document
from services.cli.status.render import render
from services.gpuagent.profile_drift.drift_watch import DriftWatch
from services.gpuagent.profiling.core.samples import Effort
from services.gpuagent.profiling.profiler.load_driver import drive
from services.kit import config
from services.kit.clock import RealClock
from services.kit.profiles.core.measurement import Measurement
from tests.support.gpuagent.agent_service import (
    NODE,
    Agent,
    Planner,
    agent,
    deployment,
    planning,
    segment_spec,
)
from tests.support.worker.worker_process import save_model, until

BATCHES = Effort(warm_up_s=0, warm_up_batches=1, least_s=0, least_batches=80, most_s=20, error=9)


def batches_of(items: int) -> Measurement:
    return Measurement("a100-40gb", "3g.20gb", items, 1)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than in production, so that tests are short."""
    monkeypatch.setattr(DriftWatch, "PERIOD_S", 0.1)


@asynccontextmanager
async def serving(folder: Path, gmacs: float) -> AsyncIterator[tuple[Planner, Agent, str]]:
    """Run a segment of a model that a profile says has so much arithmetic; give its endpoint."""
    async with planning() as (planner, port):
        settings = deployment(folder, save_model(folder / "tiny.onnx"), f"127.0.0.1:{port}")
        document = settings.model_dump(mode="json")
        profile = {"kind": "analytic", "gmacs_per_item": gmacs}
        document["models"]["m"]["variants"]["v"]["profile"] = profile
        async with agent(config.Deployment.model_validate(document)) as running:
            await planner.create("3g.20gb", 0)
            await planner.start(segment_spec())
            node = await running.node()
            yield planner, running, node.segments[0].endpoints[0]


def error(quantity: str) -> float | None:
    labels = {
        "model": "m",
        "variant": "v",
        "gpu": "a100-40gb",
        "slice": "3g.20gb",
        "batch_size": "4",
        "processes": "1",
        "quantity": quantity,
    }
    return REGISTRY.get_sample_value("cinquefoil_profile_error_ratio", labels)


async def test_a_worker_slower_than_its_profile_is_reported_with_a_request_to_measure(
    tmp_path: Path,
) -> None:
    """The profile says microseconds; the real computation takes longer than that."""
    async with serving(tmp_path, gmacs=0.001) as (planner, running, endpoint):
        assert not planner.drifts
        while not planner.drifts:
            await drive([endpoint], batches_of(4), BATCHES, RealClock())
        drift, metric = planner.drifts[0], error("latency")
        node = await running.node()

    assert (drift.model, drift.variant, drift.gpu) == ("m", "v", "a100-40gb")
    assert (drift.slice, drift.batch_size, drift.processes) == ("3g.20gb", 4, 1)
    assert drift.latency_ratio > 1.2
    assert metric is not None
    assert metric > 0.2
    shown = "".join(_shown(FleetNode(node=node, connected=True, drifts=[drift])).split())
    assert f"gpuagentprofilem/v--node{NODE}--slices3g.20gb" in shown


async def test_a_worker_as_profiled_is_not(tmp_path: Path) -> None:
    """Partial batches and pauses are no drift either."""
    async with serving(tmp_path, gmacs=40) as (planner, _, endpoint):
        for items in (1, 3):
            await drive([endpoint], batches_of(items), BATCHES, RealClock())
        await until(lambda: error("latency") is not None)
        found, energy = error("latency"), error("energy")
        drifts = list(planner.drifts)

    assert not drifts
    assert found == pytest.approx(0.0, abs=0.15)
    assert energy == pytest.approx(0.0, abs=0.2)


async def test_a_planner_that_joins_again_learns_of_wrong_profiles(tmp_path: Path) -> None:
    async with serving(tmp_path, gmacs=0.001) as (planner, _, endpoint):
        while not planner.drifts:
            await drive([endpoint], batches_of(4), BATCHES, RealClock())
        planner.drifts = []
        planner.drop_stream()
        await planner.until(lambda: bool(planner.drifts))

    assert planner.drifts[0].variant == "v"


def _shown(node: FleetNode) -> str:
    """Return what `cinquefoil status` prints of a node's profiles."""
    page = io.StringIO()
    Console(file=page, width=200).print(render(document(fleet=GetFleetResponse(nodes=[node]))))
    return page.getvalue()
