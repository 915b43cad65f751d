"""A language model on four simulated H100: one segment, metered, adopted and lost as one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import yaml

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from services.cli.profile import run
from services.cli.profile.request import Request
from services.gpuagent.devices.fake_nvml.library import FakeNvml, gpu_uuid
from services.gpuagent.profiling.core.samples import Effort
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit import config
from services.kit.net import free_port
from services.kit.profiles.table_file import read_fingerprint, read_measurements
from tests.support.gpuagent.agent_process import agent_process, killed
from tests.support.gpuagent.agent_service import (
    NODE,
    Planner,
    agent,
    deployment,
    placement,
    planning,
    segment_spec,
    workers_in,
)
from tests.support.paths import SUPPORT
from tests.support.worker.language_worker import prompt
from tests.support.worker.worker_process import routed

GPUS = tuple(gpu_uuid(NODE, index, "h100-80gb") for index in range(4))
BIG = inventory_pb2.SegmentSpec(
    segment_id="big",
    model="chat",
    variant="70b",
    batch_size=8,
    processes=1,
    gpu_uuid=GPUS[2],
    placement=placement("whole", 0),
    peer_gpu_uuids=(GPUS[0], GPUS[1], GPUS[3]),
)
IN_ORDER = (GPUS[2], GPUS[0], GPUS[1], GPUS[3])
READY = inventory_pb2.SEGMENT_STATE_READY


def four_gpus(folder: Path, model: Path, planner: str) -> config.Deployment:
    """A node whose GPUs stay whole, and a model of 70 billion parameters on four of them."""
    server = (sys.executable, str(SUPPORT / "openai_server.py"), "{port}", str(folder / "fault"))
    held = {"HELD": "{gpu_uuids}", "TENSOR_PARALLEL": "{gpus}"}
    variant = config.Variant(
        accuracy=80.0,
        gpus=4,
        profile=config.LanguageProfile(kind="language", parameters_b=70.0),
        runtime=config.OpenAiRuntime(kind="openai", command=server, environment=held, chat=False),
    )
    base = deployment(folder, model, planner)
    node = base.nodes[NODE].model_copy(
        update={"simulated": ("h100-80gb",) * 4, "allow_mig_mode": False}
    )
    chat = config.Model(slo=config.Slo(latency_s=30.0), demand_rps=1, variants={"70b": variant})
    return base.model_copy(update={"nodes": {NODE: node}, "models": {**base.models, "chat": chat}})


def energies(planner: Planner) -> Mapping[str, inventory_pb2.SegmentEnergy]:
    """Return the segment's entry in each GPU's account."""
    return {
        uuid: each
        for uuid, account in planner.energy.items()
        for each in account.segments
        if each.segment_id == "big"
    }


async def test_four_gpus_are_held_metered_and_adopted_as_one(tmp_path: Path, model: Path) -> None:
    """The server has all four; each counter has its part of what the receipts say together."""
    async with planning() as (planner, port):
        settings = four_gpus(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await planner.until(lambda: len(planner.node.gpus) == 4)
            assert {gpu.mig_enabled for gpu in planner.node.gpus} == {False}
            assert (await planner.start(BIG)).ok
            before = planner.segment("big")
            assert before is not None
            (server,) = (
                child
                for worker in workers_in(tmp_path)
                for child in worker.children(recursive=True)
                if "openai_server.py" in " ".join(child.cmdline())
            )
            assert server.environ()["HELD"] == ",".join(IN_ORDER)
            assert server.environ()["TENSOR_PARALLEL"] == "4"
            async with routed(before.endpoints[0]) as router:
                answers = [await router.infer(prompt("1 2 3", 40), n) for n in range(3)]
                await planner.until(
                    lambda: sum(each.requests for each in energies(planner).values()) == 3
                )
                pids = {process.pid for process in workers_in(tmp_path)}
                await killed(first)
                answers.append(await router.infer(prompt("1 2 3", 40), 9))
                async with agent_process(settings):
                    await planner.until(lambda: len(planner.first_requests) == 2)
                    await planner.until(
                        lambda: sum(each.requests for each in energies(planner).values()) == 4
                    )
                    after = planner.segment("big")
                    found = energies(planner)
                    assert {process.pid for process in workers_in(tmp_path)} == pids
                    locked = [await planner.lock_clock(1200, gpu) for gpu in GPUS]
                    await planner.until(
                        lambda: {g.locked_clock_mhz for g in planner.node.gpus} == {1200}
                    )

    assert [answer.status for answer in answers] == [""] * 4
    assert all(step.ok for step in locked)
    assert after is not None
    assert (after.state, after.endpoints) == (READY, before.endpoints)
    assert tuple(after.spec.peer_gpu_uuids) == IN_ORDER[1:]
    assert {uuid: each.requests for uuid, each in found.items()} == {
        uuid: 4 if uuid == GPUS[2] else 0 for uuid in GPUS
    }
    used_j = [found[uuid].active_j for uuid in GPUS]
    assert used_j == pytest.approx([used_j[0]] * 4, rel=0.05)
    assert sum(used_j) == pytest.approx(
        sum(answer.receipt.energy_j for answer in answers), rel=0.05
    )


async def test_a_lost_gpu_takes_the_segment_along_and_the_rest_serves_again(
    tmp_path: Path, model: Path
) -> None:
    """It is lost by the loss of any of its GPUs; the other three are then free."""
    async with planning() as (planner, port):
        settings = four_gpus(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings):
            await planner.until(lambda: len(planner.node.gpus) == 4)
            assert (await planner.start(BIG)).ok
            taken = await planner.start(
                segment_spec("small", gpu_uuid=GPUS[1], placement=placement("whole", 0))
            )
            assert not taken.ok
            assert "is taken by segment big" in taken.message

            ledgers = tmp_path / NODE / "ledgers"
            outsider = FakeNvml(
                NODE,
                ("h100-80gb",) * 4,
                state_dir=tmp_path / NODE / "hardware",
                activity=lambda uuid: SharedCounters(ledgers / f"{uuid}.ledger"),
            )
            outsider.lose(GPUS[3])
            await planner.until(lambda: len(planner.node.gpus) == 3 and not planner.node.segments)
            assert workers_in(tmp_path) == []
            assert not [
                each
                for each in psutil.Process().children(recursive=True)
                if "openai_server.py" in " ".join(each.cmdline())
            ]
            pair = inventory_pb2.SegmentSpec()
            pair.CopyFrom(BIG)
            pair.segment_id, pair.gpu_uuid, pair.peer_gpu_uuids[:] = "lost", GPUS[0], GPUS[1:]
            gone = await planner.start(pair)
            assert not gone.ok

            assert (
                await planner.start(
                    segment_spec("small", gpu_uuid=GPUS[1], placement=placement("whole", 0))
                )
            ).ok, "the other GPUs serve on"


@pytest.mark.parametrize(
    "changes",
    [
        {"peer_gpu_uuids": [GPUS[0]] * 3},
        {"peer_gpu_uuids": GPUS[:2]},
        {"processes": 2},
        {"placement": placement("7g.80gb", 0)},
    ],
)
async def test_gpus_that_cannot_be_one_segment_are_refused(
    tmp_path: Path, model: Path, changes: Mapping[str, object]
) -> None:
    """Twice the same, three of them, several processes, or a slice: nothing is started."""
    spec = inventory_pb2.SegmentSpec()
    spec.CopyFrom(BIG)
    for name in changes:
        spec.ClearField(name)  # type: ignore[arg-type]
    spec.MergeFrom(inventory_pb2.SegmentSpec(**changes))  # type: ignore[arg-type]
    async with planning() as (planner, port):
        settings = four_gpus(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings):
            await planner.until(lambda: len(planner.node.gpus) == 4)
            refused: steps_pb2.StepResult = await planner.start(spec)

    assert not refused.ok
    assert not planner.node.segments


async def test_a_model_is_profiled_on_all_the_gpus_that_hold_it(
    tmp_path: Path, model: Path
) -> None:
    """The server is started on all four, which are free again afterwards; the table says so."""
    async with planning() as (planner, port):
        settings = four_gpus(tmp_path, model, f"127.0.0.1:{port}")
        node = settings.nodes[NODE].model_copy(update={"listen": f"127.0.0.1:{free_port()}"})
        settings = settings.model_copy(update={"nodes": {NODE: node}})
        path = tmp_path / "cinquefoil.yaml"
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
        request = Request(
            models=("chat",),
            batch_sizes=(2,),
            prompts=(16,),
            out=tmp_path / "profiles",
            effort=Effort(0.0, 0, 0.0, 2, 30.0),
        )
        async with agent(settings):
            await planner.until(lambda: len(planner.node.gpus) == 4)
            await run.profile(path, NODE, request)
            await planner.until(lambda: len(planner.node.gpus) == 4)
            assert (await planner.start(BIG)).ok

    table = tmp_path / "profiles" / "chat.70b.4xh100-80gb.csv"
    (row,) = read_measurements(table)
    machine = read_fingerprint(table)
    assert machine is not None
    assert (machine.gpu, machine.gpus) == ("h100-80gb", 4)
    assert (row.profile, row.reason) == ("whole", "")
    assert row.prompt_token_j > 0
