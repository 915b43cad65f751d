"""The profiler against a real agent with simulated GPUs and real workers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from services.cli.profile import run
from services.cli.profile.request import Request
from services.cli.sensitivity.measure import Place, measured
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.worker_config import shape_of
from services.gpuagent.profiling.core.samples import Effort
from services.gpuagent.profiling.core.sweep import Point
from services.gpuagent.profiling.profiler.rig import reserved
from services.gpuagent.profiling.sensitivity.database import Database
from services.kit import config
from services.kit.errors import FailedPrecondition, NotFound, PermissionDenied
from services.kit.hardware.gpu_types import load
from services.kit.net import free_port
from services.kit.operators.onnx_reader import load as load_model
from services.kit.operators.onnx_reader import read
from services.kit.operators.random_inputs import Sizes
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.measurement import Measurement
from services.kit.profiles.core.profile import SliceShape
from services.kit.profiles.table import TableProfile
from services.kit.profiles.table_file import read_fingerprint, read_measurements
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    Agent,
    Planner,
    agent,
    deployment,
    planning,
    segment_spec,
    workers_in,
)
from tests.support.worker.worker_process import save_model, until

GMACS = 40.0
QUICK = Effort(warm_up_s=0.0, warm_up_batches=3, least_s=0.0, least_batches=9, most_s=1.0)


@dataclass
class Bench:
    """An agent and the planner it dials. Attributes: config (deployment file), out (tables)."""

    folder: Path
    config: Path
    agent: Agent
    planner: Planner

    @property
    def request(self) -> Request:
        """Two batch sizes of the only variant on one slice."""
        return Request(
            models=("m",),
            gpu=GPU,
            slices=("2g.10gb",),
            batch_sizes=(1, 4),
            processes=(1,),
            clock_ratios=(1.0,),
            out=self.folder / "profiles",
            effort=QUICK,
        )

    async def profile(self, request: Request) -> tuple[Measurement, ...]:
        """Measure; return what the table says."""
        await run.profile(self.config, NODE, request)
        return read_measurements(request.out / "m.v.a100-40gb.parquet")

    async def layout(self) -> tuple[list[str], list[str], int]:
        """Return the A100's slices, the ids of its segments, and the clock that is held."""
        node = await self.agent.node()
        gpu = next(each for each in node.gpus if each.uuid == GPU)
        slices = [f"{each.placement.profile}@{each.placement.start}" for each in gpu.slices]
        running = [s.spec.segment_id for s in node.segments if s.spec.gpu_uuid == GPU]
        return slices, running, gpu.locked_clock_mhz


@asynccontextmanager
async def bench(folder: Path, **node: object) -> AsyncIterator[Bench]:
    """Run an agent of an A100 and a T4, and a planner."""
    async with planning() as (planner, port):
        listen = f"127.0.0.1:{free_port()}"
        settings = deployment(
            folder, save_model(folder / "tiny.onnx"), f"127.0.0.1:{port}", address=listen, **node
        )
        profile = config.AnalyticProfile(kind="analytic", gmacs_per_item=GMACS, memory_mib=2048)
        document = settings.model_dump(mode="json")
        document["nodes"][NODE]["listen"] = listen
        document["models"]["m"]["variants"]["v"]["profile"] = profile.model_dump(mode="json")
        path = folder / "cinquefoil.yaml"
        path.write_text(yaml.safe_dump(document))
        async with agent(config.Deployment.model_validate(document)) as running:
            await planner.until(lambda: bool(planner.node.gpus))
            yield Bench(folder, path, running, planner)


async def test_simulated_gpus_reproduce_the_profile_in_a_table_that_planner_and_simulator_read(
    tmp_path: Path,
) -> None:
    """Batch sizes, processes and clocks: what was measured is what the profile says.

    The median, for a busy test machine makes single batches late; power, for lateness costs it;
    one batch more than the time allows, for the one before the first may have been seen late.
    """
    truth = AnalyticProfile(GMACS, memory_mib=2048)
    table = load("a100-40gb")
    shape = shape_of(GpuInfo(GPU, 0, table, mig_enabled=True, slices=(), clock_mhz=0), "2g.10gb")
    async with bench(tmp_path) as world:
        request = replace(world.request, processes=(1, 2), clock_ratios=(1.0, 0.7))
        rows = await world.profile(request)
        software = (await world.agent.stub.GetNode(pb.GetNodeRequest())).software

    assert len(rows) == 8
    for row in rows:
        said = truth.batch(shape, row.batch_size, row.processes, clock_ratio=row.clock_ratio)
        assert said is not None
        assert row.latency_p50_s == pytest.approx(said.latency_s, rel=0.03)
        assert row.energy_j / row.latency_s == pytest.approx(said.power_w, rel=0.03)
        assert row.latency_p95_s >= row.latency_p50_s
        each = row.batches / row.processes
        most_rps = row.processes * row.batch_size / said.latency_s * each / (each - 1)
        assert row.throughput_rps <= 1.03 * most_rps
        assert (row.energy_method, row.batches >= 2) == ("model", True)
    _is_read_alike(tmp_path / "profiles", shape, software)


def _is_read_alike(folder: Path, shape: SliceShape, software: pb.Software) -> None:
    """Make sure that CSV and Parquet say the same, name the machine, and give costs."""
    costs = []
    for suffix in ("csv", "parquet"):
        path = folder / f"m.v.a100-40gb.{suffix}"
        machine = read_fingerprint(path)
        assert machine is not None
        assert (machine.product_name, machine.simulated) == (load("a100-40gb").product_name, True)
        assert (machine.driver, machine.onnxruntime) == (software.driver, software.onnxruntime)
        assert software.driver
        assert software.onnxruntime
        costs.append(TableProfile.read(path, gpu="?", gmacs_per_item=GMACS).batch(shape, 3, 1))
    assert costs[0] is not None
    assert costs[0] == costs[1]


async def test_the_gpu_is_the_planners_before_and_after_but_not_meanwhile(tmp_path: Path) -> None:
    """The planner sees the GPU go and come back; slices and clock are what they were."""
    seen: list[frozenset[str]] = []
    async with bench(tmp_path) as world:
        await world.planner.create("3g.20gb", 0)
        before = await world.layout()
        measuring = asyncio.create_task(world.profile(replace(world.request, batch_sizes=(1,))))
        await world.planner.until(lambda: GPU not in {g.uuid for g in world.planner.node.gpus})
        seen.append(frozenset(s.spec.gpu_uuid for s in world.planner.node.segments))
        refused = await world.planner.create("1g.5gb", 6)
        rows = await measuring
        await world.planner.until(lambda: GPU in {g.uuid for g in world.planner.node.gpus})
        after, reported = await world.layout(), world.planner.slices()

    assert (refused.status, "an operator measures" in refused.message) == (
        "FAILED_PRECONDITION",
        True,
    )
    assert seen == [frozenset()]
    assert all(row.ran for row in rows)
    assert before == after == (["3g.20gb@0"], [], 0)
    assert reported == ["3g.20gb@0"]


async def test_a_gpu_that_serves_is_not_touched_and_who_forces_it_waits_for_its_segments(
    tmp_path: Path,
) -> None:
    """The planner knows that an operator waits, for as long as that lasts."""
    async with bench(tmp_path) as world:
        await world.planner.create("3g.20gb", 0)
        await world.planner.start(segment_spec("s-1"))
        before = await world.layout()
        with pytest.raises(FailedPrecondition, match="serves s-1") as caught:
            await world.profile(world.request)
        after = await world.layout()

        messages: list[str] = []
        waits = asyncio.Event()

        def waiting(segments: object) -> None:
            messages.append(str(segments))
            waits.set()

        async def reserve() -> str:
            stub = world.agent.stub
            async with reserved(stub, (GPU,), "p", wait=True, waiting=waiting) as rig:
                return rig.gpu.uuid

        reserving = asyncio.create_task(reserve())
        await waits.wait()
        still = not reserving.done()
        await world.planner.until(
            lambda: GPU in {g.uuid for g in world.planner.node.gpus if g.wanted}
        )
        await world.planner.stop("s-1")
        got = await reserving
        await world.planner.until(lambda: {g.wanted for g in world.planner.node.gpus} == {False})

    assert caught.value.reason == "GPU_SERVES"
    assert before == after == (["3g.20gb@0"], ["s-1"], 0)
    assert not (tmp_path / "profiles").exists()
    assert (messages, still, got) == (["['s-1']"], True, GPU)


async def test_two_profilers_cannot_have_one_gpu(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        stub = world.agent.stub
        async with reserved(stub, (GPU,), "a", wait=False, waiting=print):
            with pytest.raises(FailedPrecondition, match="by another operator"):
                async with reserved(stub, (GPU,), "b", wait=False, waiting=print):
                    pass
        with pytest.raises(NotFound, match="no GPU 'GPU-none'; it has GPU-"):
            async with reserved(stub, ("GPU-none",), "c", wait=False, waiting=print):
                pass


async def test_an_agent_that_only_reads_gives_no_gpu_away(tmp_path: Path) -> None:
    async with bench(tmp_path, control=False) as world:
        with pytest.raises(PermissionDenied, match="only reads"):
            await world.profile(world.request)


async def test_a_profiler_that_vanishes_leaves_nothing_behind(tmp_path: Path) -> None:
    """A stream that just ends, as after kill -9: the agent ends the workers and frees the clock."""
    async with bench(tmp_path) as world:
        await world.planner.create("3g.20gb", 0)
        before = await world.layout()
        call = world.agent.stub.Reserve(pb.ReserveRequest(gpu_uuid=GPU))
        await call.read()
        desired = pb.DesiredGpu(gpu_uuid=GPU, clock_mhz=705)
        desired.slices.add(profile="7g.40gb", start=0)
        segment = segment_spec("profile-1")
        segment.placement.profile = "7g.40gb"
        desired.segments.append(segment)
        await world.agent.stub.Reconfigure(pb.ReconfigureRequest(gpus=[desired]))
        meanwhile = await world.layout()
        call.cancel()
        await world.planner.until(lambda: world.planner.slices() == ["3g.20gb@0"])
        after = await world.layout()
        left = workers_in(tmp_path)

    assert meanwhile == (["7g.40gb@0"], ["profile-1"], 705)
    assert before == after
    assert not left


async def _once_free(
    profile: Callable[[Request], Awaitable[tuple[Measurement, ...]]], request: Request
) -> tuple[Measurement, ...]:
    """Profile as soon as the agent has noticed that the one before has gone."""
    async with asyncio.timeout(45):
        while True:
            try:
                return await profile(request)
            except FailedPrecondition as error:
                if "another operator" not in error.message:
                    raise
                await asyncio.sleep(0.1)


async def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """After ctrl-c the table says what was measured, the GPU is as before; nothing is lost."""
    book = tmp_path / "profiles" / "m.v.a100-40gb.jsonl"
    async with bench(tmp_path) as world:
        before = await world.layout()
        measuring = asyncio.create_task(world.profile(world.request))
        await until(lambda: book.exists() and book.read_text().count("\n") > 1, 0.05)
        measuring.cancel()
        await asyncio.wait([measuring])
        first = read_measurements(book.with_suffix(".csv"))
        with pytest.raises(FailedPrecondition, match="holds 1 measurements"):
            await _once_free(world.profile, world.request)
        after = await world.layout()
        both = await _once_free(world.profile, replace(world.request, resume=True))

    assert measuring.cancelled()
    assert before == after
    assert first == both[:1]
    assert [row.batch_size for row in both] == [1, 4]


async def test_what_does_not_fit_is_noted_and_larger_ones_are_left_out(tmp_path: Path) -> None:
    """2 GiB a process: three of them do not fit into 5 GB, whatever the batch size."""
    async with bench(tmp_path) as world:
        request = replace(world.request, slices=("1g.5gb",), batch_sizes=(1, 2), processes=(2, 3))
        rows = await world.profile(request)

    found = [(row.processes, row.batch_size, row.ran) for row in rows]
    assert found == [(2, 1, True), (2, 2, True), (3, 1, False)]
    assert "does not fit" in rows[-1].reason


async def test_only_the_clock_changes_between_points_of_a_segment(tmp_path: Path) -> None:
    """Workers are not started again for another clock."""
    async with (
        bench(tmp_path) as world,
        reserved(world.agent.stub, (GPU,), "p", wait=False, waiting=print) as rig,
    ):
        first = await rig.set_up("m", "v", Point("2g.10gb", 1, 4))
        one = {process.pid for process in workers_in(tmp_path)}
        second = await rig.set_up("m", "v", Point("2g.10gb", 1, 4, 990))
        other = {process.pid for process in workers_in(tmp_path)}
        held = (await world.layout())[2]

    assert first == second
    assert len(first) == len(one) == 1
    assert one == other
    assert held == 990


async def test_an_empty_gpu_is_held_at_a_clock_and_given_back_without(tmp_path: Path) -> None:
    """An empty GPU for `gpuagent sensitivity` to measure operators on."""
    save_model(tmp_path / "m.onnx")
    graph = read(load_model(tmp_path / "m.onnx"), "m", Sizes())
    async with bench(tmp_path) as world:
        async with reserved(world.agent.stub, (GPU,), "s", wait=False, waiting=print) as rig:
            uuid = await rig.hold(705)
            during = await world.layout()
        after = await world.layout()
        place = Place(world.config, NODE, GPU, wait=False)
        with Database(tmp_path / "s.db") as database, pytest.raises(FailedPrecondition) as refused:
            await measured(tmp_path / "m.onnx", graph, Sizes(), database, place)

    assert uuid.startswith("MIG-")
    assert during == (["7g.40gb@0"], [], 705)
    assert after[2] == 0
    assert "--gpu TYPE" in refused.value.message
