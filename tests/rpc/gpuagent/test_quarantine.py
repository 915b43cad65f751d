"""Models that are broken: their instance alone suffers, it is tried again, then given up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2, worker_pb2
from inference import grpc_service_pb2 as oip
from services.kit import config
from tests.support.gpuagent.agent_service import (
    NODE,
    Planner,
    agent,
    placement,
    planning,
    segment_spec,
    workers_in,
)
from tests.support.gpuagent.agent_service import deployment as simple_deployment
from tests.support.worker import faulty_models
from tests.support.worker.worker_process import infer_request, output, routed, save_model

READY = inventory_pb2.SEGMENT_STATE_READY
QUARANTINED = inventory_pb2.SEGMENT_STATE_QUARANTINED


pytestmark = pytest.mark.asyncio(loop_scope="module")

FAULTS = ("spoils", "unreadable", "crashes", "hoards", "nan", "careless")


@dataclass(frozen=True)
class World:
    """A planner whose agent runs a sound neighbour of what the test breaks.

    Attributes:
        fault: The variant that is broken; its segment is "bad".
    """

    planner: Planner
    folder: Path
    neighbour_pid: int
    fault: str = ""

    @asynccontextmanager
    async def breaking(self, fault: str) -> AsyncIterator[World]:
        """Make room for a broken model, whose file is not there yet."""
        try:
            yield replace(self, fault=fault)
        finally:
            await self.planner.stop("bad")

    @property
    def file(self) -> Path:
        """The broken model."""
        return self.folder / f"{self.fault}.onnx"

    async def start(self) -> steps_pb2.StepResult:
        """Start the broken model's segment."""
        spec = segment_spec("bad", variant=self.fault, placement=placement("3g.20gb", 4))
        return await self.planner.start(spec)

    def segment(self) -> inventory_pb2.Segment:
        segment = self.planner.segment("bad")
        assert segment is not None
        return segment

    async def until_state(
        self, state: inventory_pb2.SegmentState.ValueType
    ) -> inventory_pb2.Segment:
        await self.planner.until(
            lambda: (found := self.planner.segment("bad")) is not None and found.state == state
        )
        return self.segment()

    def kill(self) -> None:
        """Kill the broken model's worker."""
        for process in workers_in(self.folder):
            if process.pid != self.neighbour_pid:
                os.kill(process.pid, signal.SIGKILL)

    async def infer(self, *values: float) -> worker_pb2.Result:
        """Send one request to the broken model's worker."""
        x = np.array([values], np.float32)
        request = oip.ModelInferRequest(model_name="m")
        request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
        async with routed(self.segment().endpoints[0]) as router:
            return await router.infer(request)

    async def neighbour_is_well(self) -> None:
        """Make sure that the neighbour's process is the one it was, and answers."""
        segment = self.planner.segment("good")
        assert segment is not None
        assert (segment.state, segment.restarts, segment.reason) == (READY, 0, "")
        assert self.neighbour_pid in {process.pid for process in workers_in(self.folder)}
        async with routed(segment.endpoints[0]) as router:
            result = await router.infer(infer_request([[1, 2]]))
        assert output(result.response, "y") == [2.0, 3.0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One agent and one neighbour, which every fault of this module leaves alone."""
    folder = tmp_path_factory.mktemp("faults")
    async with planning() as (planner, port):
        settings = simple_deployment(
            folder,
            save_model(folder / "good.onnx"),
            f"127.0.0.1:{port}",
            workers=config.Workers(max_failures=3, memory_limit_mib=200),
        )
        served = settings.models["m"]
        good = served.variants["v"]
        bad = {name: good.model_copy(update={"file": folder / f"{name}.onnx"}) for name in FAULTS}
        served = served.model_copy(update={"variants": {**served.variants, **bad}})
        async with agent(settings.model_copy(update={"models": {"m": served}})):
            await planner.until(lambda: planner.node.name == NODE)
            for start in (0, 4):
                assert (await planner.create("3g.20gb", start)).ok
            assert (await planner.start(segment_spec("good"))).ok
            yield World(planner, folder, workers_in(folder)[0].pid)


async def test_a_file_that_spoils_is_given_up_and_taken_up_again_once_it_is_mended(
    world: World,
) -> None:
    """A file that served spoils: its worker dies, and the file does not load any more."""
    async with world.breaking("spoils") as here:
        sound = faulty_models.square_root(here.file).read_bytes()
        assert (await here.start()).ok
        here.file.write_bytes(b"not a model")
        here.kill()
        segment = await here.until_state(QUARANTINED)

        assert "cannot load the model" in segment.reason
        assert segment.restarts == 2, "three failures, and two starts between them"
        labels = {"segment": "bad", "model": "m", "variant": "spoils"}
        assert REGISTRY.get_sample_value("cinquefoil_segment_quarantined", labels) == 1
        assert REGISTRY.get_sample_value("cinquefoil_segments", {"state": "quarantined"}) == 1
        await asyncio.sleep(1.0)
        assert len(workers_in(here.folder)) == 1, "it is left alone"
        await here.neighbour_is_well()

        here.file.write_bytes(sound)
        assert (await here.start()).ok
        assert (await here.until_state(READY)).reason == ""
        assert (await here.infer(4, 9)).status == ""


async def test_a_file_that_never_loaded_fails_its_start_and_leaves_nothing(world: World) -> None:
    async with world.breaking("unreadable") as here:
        here.file.write_bytes(b"not a model")
        result = await here.start()

        assert (result.ok, result.status) == (False, "FAILED_PRECONDITION")
        assert "cannot load the model" in result.message
        assert here.planner.segment("bad") is None
        assert len(workers_in(here.folder)) == 1
        await here.neighbour_is_well()


async def test_a_model_that_crashes_its_process_is_given_up(world: World) -> None:
    """Each request ends the process by SIGBUS; after three it is not started again."""
    async with world.breaking("crashes") as here:
        weights = faulty_models.mapped_weights(here.file).with_suffix(".weights")
        whole = weights.read_bytes()
        assert (await here.start()).ok
        for failures in (1, 2, 3):
            os.truncate(weights, 0)
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await here.infer(1, 2)
            weights.write_bytes(whole)
            if failures < 3:
                await here.planner.until(
                    lambda: here.segment().restarts == failures and here.segment().state == READY  # noqa: B023 - awaited at once
                )
        segment = await here.until_state(QUARANTINED)

        assert f"status {-signal.SIGBUS}" in segment.reason
        await here.neighbour_is_well()


async def test_a_worker_that_hoards_memory_is_recycled_without_losing_a_request(
    world: World,
) -> None:
    """The worker answers what it has, then makes room for a fresh one; too often is too often."""
    async with world.breaking("hoards") as here:
        faulty_models.hoarder(here.file)
        assert (await here.start()).ok
        for failures in (1, 2, 3):
            answer = await here.infer(80, 7)
            assert output(answer.response, "y") == [80.0, 7.0]
            await here.planner.until(lambda: here.segment().reason != "")
            assert "MiB of memory, more than its 200 MiB" in here.segment().reason
            if failures < 3:
                await here.until_state(READY)
                assert (await here.infer(1, 1)).status == ""
        await here.until_state(QUARANTINED)
        await here.neighbour_is_well()


async def test_a_model_that_makes_nan_is_given_up_and_its_answers_are_errors(world: World) -> None:
    async with world.breaking("nan") as here:
        faulty_models.always_nan(here.file)
        assert (await here.start()).ok
        for restarts in (0, 1, 2):
            await here.planner.until(
                lambda: here.segment().restarts == restarts and here.segment().state == READY  # noqa: B023 - awaited at once
            )
            results = [await here.infer(1, 2) for _ in range(5)]
            assert {result.status for result in results} == {"INTERNAL"}
            assert "not a number" in results[0].message
        segment = await here.until_state(QUARANTINED)

        assert "NaN" in segment.reason
        await here.neighbour_is_well()


async def test_nan_that_a_client_requests_is_no_fault_of_the_model(world: World) -> None:
    """The root of -1, many times over, is an error each time; the root of NaN is NaN."""
    async with world.breaking("careless") as here:
        faulty_models.square_root(here.file)
        assert (await here.start()).ok
        assert output((await here.infer(4, 9)).response, "y") == [2.0, 3.0]
        assert {(await here.infer(-1, 4)).status for _ in range(12)} == {"INTERNAL"}
        assert np.isnan(output((await here.infer(float("nan"), 4)).response, "y")[0])
        assert output((await here.infer(4, 9)).response, "y") == [2.0, 3.0]
        assert (here.segment().state, here.segment().restarts) == (READY, 0)
