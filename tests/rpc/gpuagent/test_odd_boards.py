"""Agents of boards of which half works: the rest serves, and a condition names what does not."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from cinquefoil.condition.v1.condition_pb2 import CONDITION_KIND_GPU_IMPAIRED
from cinquefoil.gpuagent.v1 import inventory_pb2
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, describe
from services.gpuagent.devices.fake_nvml.library import gpu_uuid
from services.kit.hardware import gpu_types
from tests.support.gpuagent.agent_service import (
    NODE,
    Planner,
    agent,
    deployment,
    placement,
    planning,
    segment_spec,
)
from tests.support.gpuagent.odd_boards import ENERGY, FLEET, OddBoard, odd
from tests.support.worker.worker_process import infer_request, output, routed

CODES = (Code.NOT_SUPPORTED, Code.NO_PERMISSION, Code.UNKNOWN, Code.GPU_IS_LOST)
QUERIES = (
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetSupportedGraphicsClocks",
    "nvmlDeviceGetSupportedMemoryClocks",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUUID",
)
"""Queries about one GPU that an agent makes until it has reported."""

MIXED = ("a100-40gb", "t4") * 3
"""GPUs of a node: with MIG and without, by turns. The last two refuse nothing."""

QUIET = {
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetMigMode",
    ENERGY,
}
"""Queries that healthy boards refuse as not supported."""


def _troubles(node: inventory_pb2.Node) -> dict[str, str]:
    """The sentences of conditions on GPUs, by GPU."""
    return {
        each.subject.removeprefix("gpu/"): each.sentence
        for each in node.conditions
        if each.kind == CONDITION_KIND_GPU_IMPAIRED
    }


def _gpus(node: inventory_pb2.Node) -> dict[str, inventory_pb2.Gpu]:
    return {gpu.uuid: gpu for gpu in node.gpus}


async def _reported(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, boards: dict[int, OddBoard]
) -> tuple[inventory_pb2.Node, set[str], set[tuple[str, str]]]:
    """Return an agent's node, the GPUs with energy, and the calls of its driver."""
    settings = deployment(folder, model, "127.0.0.1:1")
    node = settings.nodes[NODE].model_copy(update={"simulated": MIXED})
    settings = settings.model_copy(update={"nodes": {NODE: node}})
    with odd(monkeypatch, boards) as libraries:
        async with agent(settings) as running:
            return await running.node(), set(await running.energy()), libraries[0].called


@dataclass(frozen=True)
class Healthy:
    """An agent of boards that refuse nothing. Attributes: gpus (by UUID), called (by query)."""

    gpus: dict[str, inventory_pb2.Gpu]
    called: set[tuple[str, str]]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Healthy:
    """Reports and calls of an agent whose boards refuse nothing."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("healthy")
        node, _, called = asyncio.run(_reported(folder, model, monkeypatch, {}))
    queries = {name for name, uuid in called if uuid and name.startswith("nvmlDeviceGet")}
    assert queries <= {*QUERIES}, "a new query needs a row"
    return Healthy(_gpus(node), called)


@pytest.mark.parametrize("symbol", QUERIES)
async def test_each_query_that_some_gpus_refuse_leaves_the_others_as_they_are(
    symbol: str,
    healthy: Healthy,
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the start, by each code: the others are reported as ever, with their energy.

    A code that a GPU with MIG refuses by is that of one without for the next query.
    """
    uuids = [gpu_uuid(NODE, index, gpu_type) for index, gpu_type in enumerate(MIXED)]
    first = QUERIES.index(symbol) % 2
    codes = {index: CODES[(index + first) % len(CODES)] for index in range(len(CODES))}
    boards = {
        index: OddBoard("one query", gpu_type=MIXED[index], refused={symbol: code})
        for index, code in codes.items()
    }
    node, metered, _ = await _reported(tmp_path, model, monkeypatch, boards)
    troubles = _troubles(node)
    for good in uuids[len(CODES) :]:
        assert _gpus(node)[good].type == healthy.gpus[good].type
        assert good in metered
        assert good not in troubles
    name = re.sub(r"(_v\d|V)$", "", symbol)
    for index, code in codes.items():
        bad = uuids[index]
        if (symbol, bad) not in healthy.called or (code == Code.NOT_SUPPORTED and symbol in QUIET):
            continue
        if symbol != "nvmlDeviceGetHandleByUUID":  # found by its index instead
            sentence = troubles.get(bad) or troubles[f"GPU {index}"]
            assert f"{name}: {describe(code)}" in sentence


@pytest.mark.parametrize("board", FLEET, ids=lambda board: board.name)
async def test_a_fleet_of_odd_boards_serves(
    board: OddBoard, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are answered on the odd board, where it serves, and on the healthy one beside it."""
    types = (board.gpu_type, "t4")
    odd_uuid, healthy_uuid = (gpu_uuid(NODE, i, each) for i, each in enumerate(types))
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}", clock_loop="miad")
        node = settings.nodes[NODE].model_copy(update={"simulated": types})
        settings = settings.model_copy(update={"nodes": {NODE: node}})
        with odd(monkeypatch, {0: board}):
            async with agent(settings) as running:
                await planner.until(lambda: healthy_uuid in planner.energy)
                node_now = await running.node()
                await _serve(planner, "healthy", healthy_uuid, "whole")
                if board.serves:
                    mig = gpu_types.load(board.gpu_type).mig_capable
                    await _serve(planner, "odd", odd_uuid, "3g.20gb" if mig else "whole")
                energy = await running.energy()

    assert (odd_uuid in _gpus(node_now)) is board.serves
    sentence = _troubles(node_now).get(odd_uuid, "")
    assert {name for name in board.named if name in sentence} == board.named
    assert healthy_uuid not in _troubles(node_now)
    for account in energy.values():  # what is billed is what a board can draw in the test's time
        assert 0 <= account.total_j < 1.5 * 400 * 60
        parts_j = account.idle_j + account.unattributed_j
        parts_j += sum(each.active_j for each in account.segments)
        assert parts_j == pytest.approx(account.total_j)


async def _serve(planner: Planner, name: str, uuid: str, profile: str) -> None:
    if profile != "whole":
        assert (await planner.create(profile, 0, uuid)).ok
    spec = segment_spec(name, gpu_uuid=uuid, placement=placement(profile, 0))
    started = await planner.start(spec)
    assert started.ok, started.message
    segment = planner.segment(name)
    assert segment is not None
    async with routed(segment.endpoints[0]) as worker:
        result = await worker.infer(infer_request([[1, 2]], [2]))
        assert output(result.response, "picked") == [30.0]
