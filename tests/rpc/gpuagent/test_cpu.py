"""An agent whose device is this machine's CPU: nothing is simulated, and nothing is special."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.cli.profile import run
from services.cli.profile.request import Request
from services.gpuagent.profiling.core.samples import Effort
from services.kit import config
from services.kit.net import free_port
from services.kit.profiles.table import TableProfile
from services.kit.profiles.table_file import read_fingerprint, read_measurements
from services.planner.adapters.wire.convert_node import node_from
from services.planner.core.model import Model, Pool, Variant
from services.planner.core.problem.catalog import Place, measure
from tests.support.gpuagent.agent_service import (
    NODE,
    Agent,
    Planner,
    agent,
    deployment,
    placement,
    planning,
    segment_spec,
    workers_in,
)
from tests.support.worker.worker_process import infer_request, output, routed, save_model, until

CORE = min(os.sched_getaffinity(0))
GMACS = 100.0
"""GMACs of the tiny model by its profile: seconds on any machine. It takes less than one ms."""


def settings_of(folder: Path, port: int, **node: Any) -> config.Deployment:
    """The agents' usual deployment, with one core instead of GPUs."""
    document = deployment(folder, save_model(folder / "tiny.onnx"), f"127.0.0.1:{port}").model_dump(
        mode="json"
    )
    document["nodes"][NODE] |= {"simulated": None, "cpu": {"cores": [CORE]}, **node}
    profile = {"kind": "analytic", "gmacs_per_item": GMACS, "memory_mib": 64}
    document["models"]["m"]["variants"]["v"]["profile"] = profile
    return config.Deployment.model_validate(document)


@asynccontextmanager
async def cpu_agent(settings: config.Deployment, planner: Planner) -> AsyncIterator[Agent]:
    """An agent that has reported its core to its planner."""
    async with agent(settings) as running:
        await planner.until(lambda: any(gpu.type.name == "cpu-1" for gpu in planner.node.gpus))
        yield running


async def test_a_slice_of_cores_lives_as_a_slice_of_a_gpu_does(tmp_path: Path) -> None:
    """Created, used, metered and destroyed by the same steps; batches take what they take."""
    async with planning() as (planner, port):
        settings = settings_of(tmp_path, port)
        async with cpu_agent(settings, planner) as running:
            (device,) = planner.node.gpus
            uuid = device.uuid
            assert (planner.node.simulated, device.mig_enabled) == (False, True)
            assert device.type.core_gmacs_per_s > 0
            assert not device.clock_lockable
            assert (await planner.create("1c", 0, uuid)).ok
            assert planner.slices(uuid) == ["1c@0"]
            spec = segment_spec("s-1", gpu_uuid=uuid, placement=placement("1c", 0))
            assert (await planner.start(spec)).ok
            (worker,) = workers_in(tmp_path)
            assert worker.cpu_affinity() == [CORE]
            refused = await planner.destroy("1c", 0, uuid)
            assert (refused.status, planner.slices(uuid)) == ("FAILED_PRECONDITION", ["1c@0"])

            segment = planner.segment("s-1")
            assert segment is not None
            async with routed(segment.endpoints[0]) as router:
                results = [await router.infer(infer_request([[1, 2]]), n) for n in range(20)]
            assert [output(each.response, "y") for each in results] == [[2.0, 3.0]] * 20
            assert max(each.receipt.compute_s for each in results) < 0.5, "no simulated time"

            def counted() -> bool:
                account = planner.energy.get(uuid)
                return account is not None and any(s.requests == 20 for s in account.segments)

            await planner.until(counted)
            account = (await running.energy())[uuid]
            assert account.method in {"rapl", "model"}
            parts_j = account.idle_j + account.unattributed_j
            parts_j += sum(each.active_j for each in account.segments)
            assert parts_j == pytest.approx(account.total_j)

            assert (await planner.stop("s-1")).ok
            await until(lambda: not workers_in(tmp_path))
        async with cpu_agent(settings, planner):
            assert planner.slices(uuid) == ["1c@0"], "slices outlive the agent"
            assert (await planner.destroy("1c", 0, uuid)).ok
            assert planner.slices(uuid) == []


async def test_cores_are_profiled_for_real_and_the_planner_reads_the_table(tmp_path: Path) -> None:
    """The measured profile is the machine's: thousands of times faster than the model assumed."""
    async with planning() as (planner, port):
        listen = f"127.0.0.1:{free_port()}"
        settings = settings_of(tmp_path, port, listen=listen)
        path = tmp_path / "cinquefoil.yaml"
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
        async with cpu_agent(settings, planner):
            request = Request(
                models=("m",),
                batch_sizes=(1, 4),
                processes=(1,),
                out=tmp_path / "profiles",
                effort=Effort(0.0, 3, 0.0, 9, 1.0),
            )
            node = node_from(planner.node)
            await run.profile(path, NODE, request)

    table = tmp_path / "profiles" / "m.v.cpu-1.parquet"
    points = read_measurements(table)
    machine = read_fingerprint(table)
    assert machine is not None
    assert (machine.gpu, machine.simulated, machine.driver) == ("cpu-1", False, "")
    assert machine.onnxruntime
    assert [(p.profile, p.batch_size, p.processes) for p in points] == [("1c", 1, 1), ("1c", 4, 1)]
    assert all(0 < point.latency_s < 0.5 for point in points)
    assert {point.energy_method for point in points} <= {"rapl", "model"}

    profile = TableProfile.read(table, gpu="cpu-1", gmacs_per_item=GMACS)
    (device,) = node.gpus
    variant = Variant("v", 0.9, profile)
    here = Place(
        Model("m", 1.0, 95.0, 1.0, (variant,)),
        variant,
        Pool(device.type, "Z", 1.0, 1.0),
        device.type.geometry.kind("1c"),
    )
    kinds = list(measure(here, (1, 4), 1))
    assert [kind.latency_s for kind in kinds] == [point.latency_s for point in points]
