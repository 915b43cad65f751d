"""The agent on simulated GPUs: steps, reports, energy, and workers that die."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from services.gpuagent.app import run
from services.gpuagent.devices.fake_nvml.core import sensors
from services.kit import config
from services.kit.errors import FailedPrecondition, InvalidArgument
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    WHOLE_GPU,
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


@pytest.fixture
async def planner() -> AsyncIterator[tuple[Planner, int]]:
    async with planning() as (planner, port):
        yield planner, port


@pytest.fixture
async def node(
    planner: tuple[Planner, int], tmp_path: Path, model: Path
) -> AsyncIterator[tuple[Planner, Agent]]:
    """An agent that has joined its planner."""
    settings = deployment(tmp_path, model, f"127.0.0.1:{planner[1]}")
    async with agent(settings) as running:
        await planner[0].until(lambda: planner[0].node.name == NODE)
        yield planner[0], running


def _pids(folder: Path) -> list[int]:
    return [process.pid for process in workers_in(folder)]


async def test_the_first_report_is_the_node_as_the_hardware_is(
    node: tuple[Planner, Agent],
) -> None:
    """MIG mode is on where the GPU has it; a GPU without is one whole slice."""
    planner, running = node

    assert planner.first_requests[0].node.name == NODE
    assert (planner.node.zone, planner.node.simulated) == ("Z", True)
    a100, t4 = planner.node.gpus
    assert (a100.uuid, a100.type.name, a100.mig_enabled) == (GPU, "a100-40gb", True)
    assert (t4.uuid, t4.type.name, t4.mig_enabled) == (WHOLE_GPU, "t4", False)
    assert a100.type.memory_slices == 8
    assert {p.name for p in a100.type.profiles} >= {"1g.5gb", "3g.20gb", "7g.40gb"}
    assert planner.slices() == []
    assert planner.slices(WHOLE_GPU) == ["whole@0"]
    assert await running.node() == planner.node


async def test_variants_of_a_reloaded_file_can_be_started(
    node: tuple[Planner, Agent], tmp_path: Path, model: Path
) -> None:
    planner, running = node
    settings = running.reloads.deployment
    known = settings.models["m"]
    more = known.model_copy(update={"variants": {**known.variants, "w": known.variants["v"]}})
    changed = settings.model_copy(update={"models": {"m": more}}).read_from(None, "d1g357")
    await planner.create("3g.20gb", 0)
    spec = segment_spec(variant="w")
    before = await planner.start(spec)
    await running.reloads.apply(changed)
    after = await planner.start(spec)

    assert (before.ok, before.status) == (False, "NOT_FOUND")
    assert after.ok
    await planner.until(lambda: planner.config_digest == "d1g357")


async def test_a_segment_from_its_slice_over_a_killed_worker_to_its_end(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    """Every step twice is the step once; a worker that is killed comes back on its endpoint."""
    planner, _ = node

    assert [(await planner.create("3g.20gb", 4)).ok for _ in range(2)] == [True, True]
    assert planner.slices() == ["3g.20gb@4"]
    uuid = planner.node.gpus[0].slices[0].uuid
    spec = segment_spec(placement=placement("3g.20gb", 4), processes=2)
    assert [(await planner.start(spec)).ok for _ in range(2)] == [True, True]
    assert planner.node.gpus[0].slices[0].uuid == uuid
    assert len(_pids(tmp_path)) == 2
    segment = planner.segment("s-1")
    assert segment is not None
    assert segment.spec == spec
    assert segment.state == inventory_pb2.SEGMENT_STATE_READY
    assert len(set(segment.endpoints)) == 2
    assert await _all_answer(segment.endpoints) == [4, 4]

    victim, sibling = _pids(tmp_path)
    os.kill(victim, signal.SIGKILL)
    await planner.until(lambda: _restarted(planner.segment("s-1")))
    after = planner.segment("s-1")
    assert after is not None
    assert after.endpoints == segment.endpoints
    assert victim not in _pids(tmp_path)
    assert sibling in _pids(tmp_path)
    await _all_answer(after.endpoints)

    assert [(await planner.stop("s-1")).ok for _ in range(2)] == [True, True]
    assert planner.segment("s-1") is None
    assert _pids(tmp_path) == []
    assert [(await planner.destroy("3g.20gb", 4)).ok for _ in range(2)] == [True, True]
    assert planner.slices() == []
    assert (await planner.create("whole", 0, WHOLE_GPU)).ok


async def _all_answer(endpoints: Iterable[str]) -> list[int]:
    """Open a stream to every worker of s-1; return the credits that they gave."""
    credits_ = []
    for endpoint in endpoints:
        async with routed(endpoint) as router:
            assert router.hello.segment_id == "s-1"
            credits_.append(router.hello.credits)
            result = await router.infer(infer_request([[1, 2]], [2]))
            assert output(result.response, "picked") == [30.0]
    return credits_


def _restarted(segment: inventory_pb2.Segment | None) -> bool:
    ready = inventory_pb2.SEGMENT_STATE_READY
    return segment is not None and (segment.restarts, segment.state) == (1, ready)


async def test_what_cannot_be_is_refused_and_changes_nothing(node: tuple[Planner, Agent]) -> None:
    """A successor may start beside a serving segment: a model that is swapped never stops."""
    planner, _ = node
    assert (await planner.create("3g.20gb", 0)).ok
    assert (await planner.start(segment_spec())).ok

    refusals = {
        "in use": await planner.destroy("3g.20gb", 0),
        "overlap": await planner.create("4g.20gb", 0),
        "profile": await planner.create("9g.90gb", 0),
        "gpu": await planner.create("3g.20gb", 0, gpu="GPU-none"),
        "no slice": await planner.start(segment_spec("s-2", placement=placement("1g.5gb", 4))),
        "another": await planner.start(segment_spec("s-1", batch_size=8)),
        "variant": await planner.start(segment_spec("s-2", variant="w")),
        "path": await planner.start(segment_spec("../s-2")),
        "nothing": await planner.send_step(),
        "a newer planner's": await planner.send_step(start_segment=steps_pb2.StartSegment()),
    }

    assert {name: (result.ok, result.status) for name, result in refusals.items()} == {
        "in use": (False, "FAILED_PRECONDITION"),
        "overlap": (False, "FAILED_PRECONDITION"),
        "profile": (False, "INVALID_ARGUMENT"),
        "gpu": (False, "NOT_FOUND"),
        "no slice": (False, "FAILED_PRECONDITION"),
        "another": (False, "ALREADY_EXISTS"),
        "variant": (False, "NOT_FOUND"),
        "path": (False, "INVALID_ARGUMENT"),
        "nothing": (False, "INVALID_ARGUMENT"),
        "a newer planner's": (False, "INVALID_ARGUMENT"),
    }
    assert "segment s-1 runs on 3g.20gb@0" in refusals["in use"].message
    assert planner.slices() == ["3g.20gb@0"]
    assert [s.spec.segment_id for s in planner.node.segments] == ["s-1"]

    successor = await planner.start(segment_spec("s-2", batch_size=8))
    third = await planner.start(segment_spec("s-3"))

    assert (successor.ok, third.ok, third.status) == (True, False, "FAILED_PRECONDITION")
    assert "taken by segment s-1, s-2" in third.message
    assert (await planner.stop("s-1")).ok
    assert [(s.spec.segment_id, s.state) for s in planner.node.segments] == [
        ("s-2", inventory_pb2.SEGMENT_STATE_READY)
    ]


async def test_steps_of_one_message_run_at_the_same_time(node: tuple[Planner, Agent]) -> None:
    """Seven slices, and segments on three of them, all requested at once."""
    planner, _ = node
    places = [placement("1g.5gb", start) for start in range(7)]

    created = await asyncio.gather(*(planner.create(p.profile, p.start) for p in places))
    started = await asyncio.gather(
        *(planner.start(segment_spec(f"s-{p.start}", placement=p)) for p in places[::3])
    )

    assert all(result.ok for result in (*created, *started)), (created, started)
    endpoints = [endpoint for s in planner.node.segments for endpoint in s.endpoints]
    assert len(set(endpoints)) == 3


async def test_a_model_that_cannot_be_loaded_fails_its_step_and_leaves_nothing(
    planner: tuple[Planner, int], tmp_path: Path
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    settings = deployment(tmp_path, tmp_path / "broken.onnx", f"127.0.0.1:{planner[1]}")
    async with agent(settings):
        await planner[0].create("3g.20gb", 0)
        result = await planner[0].start(segment_spec())
        destroyed = await planner[0].destroy("3g.20gb", 0)

    assert (result.ok, result.status) == (False, "FAILED_PRECONDITION")
    assert "cannot load the model" in result.message
    assert destroyed.ok


async def test_a_file_that_loads_for_ever_is_not_waited_for(
    planner: tuple[Planner, int], tmp_path: Path
) -> None:
    """A pipe without a writer stands for a disk that hangs. A neighbour keeps serving."""
    file = save_model(tmp_path / "m.onnx")
    limits = config.Workers(load_timeout_s=8.0)  # its neighbour loads on a busy machine, too
    settings = deployment(tmp_path, file, f"127.0.0.1:{planner[1]}", workers=limits)
    async with agent(settings):
        for start in (0, 4):
            await planner[0].create("3g.20gb", start)
        assert (await planner[0].start(segment_spec())).ok
        neighbours = _pids(tmp_path)
        file.unlink()
        os.mkfifo(file)
        result = await planner[0].start(segment_spec("s-2", placement=placement("3g.20gb", 4)))

        assert (result.ok, result.status) == (False, "FAILED_PRECONDITION")
        assert "did not answer within 8 s" in result.message
        assert _pids(tmp_path) == neighbours
        segment = planner[0].segment("s-1")
        assert segment is not None
        assert segment.restarts == 0
        await _all_answer(segment.endpoints)


async def test_accounts_add_up_to_the_meter_and_to_the_receipts_and_metrics_say_the_same(
    node: tuple[Planner, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three views of the same joules: the device's meter, the account, what receipts state."""
    planner, running = node
    # A tick of the counter is 5 J of an idle GPU: as much as a short test's batches.
    monkeypatch.setattr(sensors, "ENERGY_TICK_S", 0.001)
    await planner.create("3g.20gb", 0)
    await planner.start(segment_spec())
    await _metrics_are_those_of_an_idle_segment(planner)
    segment = planner.segment("s-1")
    assert segment is not None
    async with routed(segment.endpoints[0]) as router:
        results = [await router.infer(infer_request([[0, 0]] * 4), number) for number in range(200)]
    receipts_j = sum(result.receipt.energy_j for result in results)

    def counted() -> bool:
        account = planner.energy.get(GPU)
        return account is not None and sum(s.requests for s in account.segments) == 200

    await planner.until(counted)
    account = (await running.energy())[GPU]
    entry = account.segments[0]
    parts_j = account.idle_j + account.unattributed_j + entry.active_j
    assert parts_j == pytest.approx(account.total_j)
    assert (entry.segment_id, entry.model, entry.variant) == ("s-1", "m", "v")
    # A window's idle part is measured time: a process that waits for its turn in between is off.
    assert entry.active_j == pytest.approx(receipts_j, abs=0.05 * receipts_j + 50.0 * 0.02)
    assert entry.busy_s == pytest.approx(sum(r.receipt.compute_s for r in results))
    assert account.method == "model"
    assert account.power_w >= 50.0


async def _metrics_are_those_of_an_idle_segment(planner: Planner) -> None:
    labels = {"gpu_uuid": GPU, "method": "model"}

    def energy_j() -> float:
        return REGISTRY.get_sample_value("cinquefoil_gpu_energy_joules_total", labels) or 0.0

    def power_w() -> float:
        return REGISTRY.get_sample_value("cinquefoil_gpu_power_watts", {"gpu_uuid": GPU}) or 0.0

    # A worker's context draws from its start on: the first readings may be of before.
    await planner.until(lambda: energy_j() > 0 and power_w() == pytest.approx(55.0))
    segment = {"segment": "s-1", "model": "m", "variant": "v"}
    assert REGISTRY.get_sample_value("cinquefoil_worker_restarts_total", segment) == 0
    assert REGISTRY.get_sample_value("cinquefoil_segment_quarantined", segment) == 0
    assert REGISTRY.get_sample_value("cinquefoil_segments", {"state": "ready"}) == 1
    dcgm = {"UUID": GPU, "GPU_I_ID": "1", "GPU_I_PROFILE": "3g.20gb"}
    (info,) = (
        sample.labels
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "cinquefoil_slice_info" and sample.labels["model"]
    )
    assert info.items() >= (segment | dcgm | {"slice": "3g.20gb@0"}).items()
    assert info["mig_uuid"].startswith("MIG-")
    memory = {"gpu_uuid": GPU, "slice": "3g.20gb@0"}
    memory_bytes = REGISTRY.get_sample_value("cinquefoil_slice_memory_bytes", memory) or 0
    assert memory_bytes > 19 * 2**30
    clock_hertz = REGISTRY.get_sample_value("cinquefoil_gpu_sm_clock_hertz", {"gpu_uuid": GPU})
    assert clock_hertz == pytest.approx(1410e6)
    for over in ("window", "all"):
        check = {"gpu_uuid": GPU, "over": over}
        error = REGISTRY.get_sample_value("cinquefoil_energy_conservation_error_ratio", check)
        assert error is not None
        assert error < 0.01
    await until(lambda: _attributed_j({"gpu_uuid": GPU, "slice": "3g.20gb@0"} | segment) == 0, 0.05)


def _attributed_j(labels: dict[str, str]) -> float | None:
    return REGISTRY.get_sample_value("cinquefoil_segment_energy_joules_total", labels)


async def test_a_planner_that_comes_back_is_sent_the_node_first_and_old_results_never(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    planner, _ = node
    await planner.create("3g.20gb", 0)
    start = asyncio.create_task(planner.start(segment_spec()))
    await until(lambda: bool(planner.node.segments) or bool(_pids(tmp_path)), 0.05)

    planner.drop_stream()
    await planner.until(lambda: len(planner.first_requests) == 2)

    assert planner.first_requests[1].node.name == NODE
    await planner.until(lambda: bool(planner.node.segments) and planner.node.segments[0].state == 2)
    assert not start.done(), "the step continued, but its result died with its stream"
    start.cancel()


async def test_an_agent_without_a_planner_serves_and_joins_when_one_appears(
    tmp_path: Path, model: Path
) -> None:
    async with planning() as (_, port):
        pass
    async with agent(deployment(tmp_path, model, f"127.0.0.1:{port}")) as running:
        assert (await running.node()).name == NODE
        async with planning(port) as (planner, _):
            await planner.until(lambda: planner.node.name == NODE)


async def test_an_agent_that_leaves_serves_until_the_next_planner_releases_it(
    tmp_path: Path, model: Path
) -> None:
    """The planner ends before it has moved anything: the next one finds the segment ready."""
    async with AsyncExitStack() as stack:
        async with planning() as (first, port):
            settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
            others = {"join": config.Join(listen="127.0.0.1:0")}
            running = await stack.enter_async_context(agent(settings.model_copy(update=others)))
            await first.until(lambda: first.node.name == NODE)
            await first.create("3g.20gb", 0)
            await first.start(segment_spec())
            running.stop.set()
            await first.until(lambda: all(gpu.wanted for gpu in first.node.gpus))
        async with planning(port) as (second, _):
            await second.until(lambda: second.node.name == NODE)
            found = second.segment("s-1")
            assert found is not None
            assert found.state == inventory_pb2.SEGMENT_STATE_READY
            second.release()
            await stack.aclose()


async def test_stopping_the_agent_drains_its_workers(
    planner: tuple[Planner, int], tmp_path: Path, model: Path
) -> None:
    settings = deployment(tmp_path, model, f"127.0.0.1:{planner[1]}")
    async with agent(settings) as running:
        await planner[0].create("3g.20gb", 0)
        await planner[0].start(segment_spec())
        segment = planner[0].segment("s-1")
        assert segment is not None
        async with routed(segment.endpoints[0]) as router:
            running.stop.set()
            while not router.ended:
                await router.receive()
            assert router.draining

    assert _pids(tmp_path) == []
    async with agent(settings) as again:
        node = await again.node()
    assert [len(gpu.slices) for gpu in node.gpus] == [1, 1], "slices outlive the agent"
    assert not node.segments


async def test_two_agents_of_one_node_are_one_too_many(
    planner: tuple[Planner, int], tmp_path: Path, model: Path
) -> None:
    settings = deployment(tmp_path, model, f"127.0.0.1:{planner[1]}")
    async with agent(settings):
        with pytest.raises(FailedPrecondition, match="another agent runs on this node"):
            await run(settings, asyncio.Event())


async def test_a_node_that_the_deployment_lacks_is_refused(tmp_path: Path, model: Path) -> None:
    settings = deployment(tmp_path, model, "127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="node must be one of node-a, got 'node-b'"):
        await run(settings, asyncio.Event(), node="node-b")
