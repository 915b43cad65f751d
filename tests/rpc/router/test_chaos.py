"""Workers die, drain and move under load: every request has one end, and the books balance."""

import asyncio
import random

import grpc
import numpy as np

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import (
    ScriptedWorker,
    World,
    computed,
    infer_request,
    routed,
    running,
)

CALLERS, EACH = 16, 40


async def caller(world: World, name: int, ends: dict[str, int]) -> None:
    """Send requests one after another; each answer must be the answer to its own request."""
    stub = GRPCInferenceServiceStub(world.channel)
    for number in range(EACH):
        tag = name * 1000 + number
        try:
            answer = await stub.ModelInfer(infer_request(tag, 1, 0, 0, name=str(tag)), timeout=10)
        except grpc.aio.AioRpcError as error:
            if "workers died while they held this request" not in str(error.details()):
                raise
            ends["refused"] += 1
        else:
            assert answer.id == str(tag)
            assert np.frombuffer(answer.raw_output_contents[0], np.float32) == tag + 1
            ends["answered"] += 1


async def trouble(world: World, workers: list[ScriptedWorker], rng: random.Random) -> None:
    """Kill a worker, change the table or let a worker hold its work for a while, for ever."""
    while True:
        await asyncio.sleep(rng.uniform(0.01, 0.05))
        victim = rng.choice(workers)
        match rng.choice(("die", "route", "hold")):
            case "die":
                victim.die()
            case "route":
                await world.planner.route(*routed_some(workers, rng))
            case "hold":
                victim.answer = lambda _: None
                await asyncio.sleep(0.02)
                victim.answer = computed
                victim.finish()


def routed_some(workers: list[ScriptedWorker], rng: random.Random) -> list[plan_pb2.Instance]:
    chosen = rng.sample(workers, rng.randint(1, len(workers)))
    return [routed(worker, 1 / len(chosen)) for worker in chosen]


async def test_every_request_ends_once_while_workers_die_and_tables_change() -> None:
    async with running(max_queue=100) as world:
        workers = [await world.worker(name, credits_=2) for name in "abc"]
        await world.route(*workers)
        ends = {"answered": 0, "refused": 0}
        chaos = asyncio.create_task(trouble(world, workers, random.Random(5)))
        try:
            async with asyncio.TaskGroup() as tasks:
                for name in range(CALLERS):
                    tasks.create_task(caller(world, name, ends))
        finally:
            chaos.cancel()

        response = await RouterServiceStub(world.channel).GetStatus(router_pb2.GetStatusRequest())

    (model,) = response.models
    assert ends["answered"] + ends["refused"] == CALLERS * EACH
    assert ends["answered"] > 0.9 * CALLERS * EACH
    assert (model.accepted, model.answered) == (CALLERS * EACH, ends["answered"])
    assert model.failed == ends["refused"]
    assert model.queue_depth == 0
    assert model.retried > 0, "the test disturbed no request"
