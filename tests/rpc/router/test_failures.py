"""Failures behind a router as clients see them: as few as can be, and never silence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.gpuagent.v1 import worker_pb2
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.net import free_port
from services.kit.rpc import dial
from services.kit.rpc.status import from_wire
from services.local.up.health import until_answering
from services.router.app import run
from tests.support.router.router_service import (
    ScriptedWorker,
    World,
    computed,
    deployment,
    infer_request,
    running,
)
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.router.router_service import Answer


async def infer(world: World, name: str = "") -> pb.ModelInferResponse:
    return await GRPCInferenceServiceStub(world.channel).ModelInfer(infer_request(name=name))


def killed_by(worker: ScriptedWorker, name: str) -> Answer:
    """Return how a worker answers that dies of one request."""

    def answer(work: worker_pb2.Work) -> worker_pb2.Result | None:
        if pb.ModelInferRequest.FromString(work.request).id != name:
            return computed(work)
        worker.die()
        return None

    return answer


async def test_requests_beside_one_that_kills_are_answered_by_others() -> None:
    """All four are with the worker that dies first; one of them kills the next one, too."""
    async with running() as world:
        first, *others = [await world.worker(name, lambda _: None) for name in "abc"]
        await world.route(first, *others, shares=(1.0, 0.0, 0.0))
        calls = [asyncio.create_task(infer(world, name)) for name in ("poison", "x", "y", "z")]
        await until(lambda: len(first.held) == 4)
        for worker in (first, *others):
            worker.answer = killed_by(worker, "poison")

        first.die()
        *answers, poison = await asyncio.gather(*calls[1:], calls[0], return_exceptions=True)

        works = [work for worker in (first, *others) for work in worker.works]

    assert isinstance(poison, grpc.aio.AioRpcError)
    assert from_wire(poison).reason == "WORKERS_DIED"
    assert [getattr(answer, "id", answer) for answer in answers] == ["x", "y", "z"]
    ids = [pb.ModelInferRequest.FromString(work.request).id for work in works]
    assert ids.count("poison") == 2, "it is never retried a second time"


async def test_a_slow_workers_request_is_answered_by_another_and_withdrawn_from_it() -> None:
    async with running(hedge_after_s=0.05) as world:
        slow, other = await world.worker("a", lambda _: None), await world.worker("b")
        await world.route(slow, other, shares=(0.999, 0.001))

        answer = await infer(world)
        await until(lambda: len(slow.cancelled) == 1)
        status = await RouterServiceStub(world.channel).GetStatus(router_pb2.GetStatusRequest())

    assert answer.parameters["model_variant"].string_param == other.variant
    assert slow.cancelled == [work.id for work in slow.works]
    assert (status.models[0].answered, status.models[0].retried) == (1, 1)


async def test_answers_and_their_carbon_go_on_while_the_carbon_service_is_away() -> None:
    async with running(intensity_gco2e_per_kwh=1000.0) as world:
        await world.route(await world.worker("a"))

        async def known() -> bool:
            return "carbon_gco2e" in (await infer(world)).parameters

        await until(known)
        await world.carbon_stack.aclose()
        answers = [await infer(world) for _ in range(3)]

    assert [each.parameters["carbon_gco2e"].double_param for each in answers] == [
        pytest.approx(3.6 / 3.6e6 * 1000 * 1.5)
    ] * 3


async def test_a_router_that_restarts_answers_before_a_planner_does(tmp_path: Path) -> None:
    """The router serves by the table that the one before it kept."""
    file = tmp_path / "routes.json"
    async with running(routing_file=str(file)) as world:
        await world.route(await world.worker("a"))
        await until(file.exists)
        stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
        alone = deployment(free_port(), free_port(), routing_file=str(file))
        again = asyncio.create_task(run(alone, stop, port.set_result))
        async with dial(f"127.0.0.1:{await port}") as channel:
            await until_answering(f"127.0.0.1:{port.result()}")
            answer = await GRPCInferenceServiceStub(channel).ModelInfer(infer_request(name="x"))
        stop.set()
        await again

    assert answer.id == "x"
