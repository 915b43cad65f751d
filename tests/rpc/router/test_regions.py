"""Requests that leave for a peer region, and come home when it fails: two real routers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from benchmarks._link import Link, linked
from cinquefoil.planner.v1 import waiting_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.net import free_port
from tests.support.router.router_service import (
    ScriptedWorker,
    World,
    computed,
    infer_request,
    running,
)
from tests.support.router.router_streams import answers, final, part, sent, stream, texts
from tests.support.waiting import until

if TYPE_CHECKING:
    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub


@dataclass
class Pair:
    """Two regions: the home router, the one far away, a worker of each, and what lies between."""

    home: World
    far: World
    near_worker: ScriptedWorker
    far_worker: ScriptedWorker
    cable: Link

    async def infer(self, timeout: float | None = None) -> pb.ModelInferResponse:  # noqa: ASYNC109
        """Request an answer at home."""
        stub: GRPCInferenceServiceAsyncStub = GRPCInferenceServiceStub(self.home.channel)
        return await stub.ModelInfer(infer_request(1, 2, 3, 4), timeout=timeout)

    def reported(self, world: World, field: str) -> float:
        """Return a count of what a router has reported of the other region."""
        loads = (load for report in world.planner.reports for load in report.region_loads)
        return float(sum(getattr(load, field) for load in loads))


def _section(name: str, peer: str, router: str) -> dict[str, Any]:
    address = {"planner": f"127.0.0.1:{free_port()}", "router": router}
    return {"regions": {"name": name, "peers": {peer: address}}}


def _linked(world: World) -> bool:
    return any(report.region_links for report in world.planner.reports)


@asynccontextmanager
async def regions() -> AsyncIterator[Pair]:
    """Run both routers; all of the home's requests may leave, and the far ones may come back."""
    where = f"127.0.0.1:{free_port()}"
    async with (
        running(sections=_section("far", "home", where), report_interval_s=0.1) as far,
        linked(far.address) as cable,
    ):
        section = _section("home", "far", cable.address)
        async with running(sections=section, listen=where, report_interval_s=0.1) as home:
            pair = Pair(home, far, await home.worker("near"), await far.worker("far"), cable)
            pair.far_worker.decoupled = True
            await home.route(pair.near_worker)
            await far.route(pair.far_worker)
            for world in (home, far):
                await until(partial(_linked, world))
            await home.planner.forward("far")
            await far.planner.forward("home")

            async def leaves() -> bool:
                await pair.infer()
                return bool(pair.far_worker.works)

            await until(leaves)
            yield pair


async def test_requests_leave_with_their_receipt_and_never_twice() -> None:
    """The far region answers, although it might send on; the receipt is its own, and named."""
    async with regions() as pair:
        far, near = len(pair.far_worker.works), len(pair.near_worker.works)
        answers = [await pair.infer(timeout=5.0) for _ in range(5)]
        await until(lambda: pair.reported(pair.home, "sent") >= 5)
        await until(lambda: pair.reported(pair.far, "received") >= 5)
        await until(lambda: pair.reported(pair.far, "answered") >= 5)
        sent_j, answered_j = (
            pair.reported(pair.home, "sent_j"),
            pair.reported(pair.far, "answered_j"),
        )

    assert len(pair.far_worker.works) == far + 5
    assert len(pair.near_worker.works) == near
    assert sent_j == pytest.approx(answered_j)
    assert sent_j >= sum(each.parameters["energy_j"].double_param for each in answers) > 0
    for answer in answers:
        assert answer.parameters["region"].string_param == "far"
        assert answer.parameters["model_variant"].string_param == "variant-far"
        assert answer.parameters["carbon_gco2e"].double_param > 0
    assert 0 < pair.far_worker.works[-1].remaining_s <= 5.0


async def test_requests_that_wait_at_home_leave_once_a_region_takes_them() -> None:
    """Held by plan at home, one runs far away at a rate of its own; after a cut it waits again."""
    async with regions() as pair:
        await pair.home.planner.forward("far")  # none of those that can wait
        now_s = int(time.time())
        period = waiting_pb2.ReleasePeriod(cause=waiting_pb2.RELEASE_CAUSE_LATER)
        period.since.FromSeconds(now_s - 10)
        period.until.FromSeconds(now_s + 7200)
        release = waiting_pb2.WaitingRelease(model="digits", periods=[period])
        await pair.home.planner.release(release)
        await pair.home.route(pair.near_worker)  # with which both are in force
        near, far = len(pair.near_worker.works), len(pair.far_worker.works)
        request = infer_request(1, 2, 3, 4)
        request.parameters["wait_until"].int64_param = now_s + 3600
        stub: GRPCInferenceServiceAsyncStub = GRPCInferenceServiceStub(pair.home.channel)
        call = asyncio.ensure_future(stub.ModelInfer(request))
        await until(lambda: _queued(pair.home) == 1)
        assert (len(pair.near_worker.works), len(pair.far_worker.works)) == (near, far)

        pair.far_worker.answer = lambda _: None
        await pair.home.planner.forward("far", waiting_rps=10.0)
        await until(lambda: bool(pair.far_worker.held))
        pair.cable.freeze()
        await until(lambda: pair.reported(pair.home, "returned") == 1)
        await until(lambda: _queued(pair.home) == 1)
        pair.far_worker.answer = computed
        pair.cable.thaw()
        answer = await call
        await until(lambda: pair.reported(pair.home, "sent_waiting") == 1)

    assert len(pair.near_worker.works) == near
    assert answer.parameters["region"].string_param == "far"


def _queued(world: World) -> int:
    return world.planner.reports[-1].models[0].waiting.queued


async def test_a_region_that_fails_brings_requests_home() -> None:
    """One in flight there is answered at home, and the next ones do not leave."""
    async with regions() as pair:
        pair.far_worker.answer = lambda _: None
        near, far = len(pair.near_worker.works), len(pair.far_worker.works)
        answer = await pair.infer(timeout=1.0)
        await pair.infer(timeout=5.0)
        await until(lambda: pair.reported(pair.home, "returned") == 1)

    assert answer.parameters["model_variant"].string_param == "variant-near"
    assert len(pair.near_worker.works) == near + 2
    assert len(pair.far_worker.works) == far + 1


async def test_a_request_that_is_malformed_is_refused_by_either() -> None:
    """A refusal of the far region as malformed is final: this one would refuse it, too."""
    async with regions() as pair:
        stub: GRPCInferenceServiceAsyncStub = GRPCInferenceServiceStub(pair.home.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(infer_request(1, 2, 3))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert pair.far_worker.answer is computed


async def test_a_region_that_falls_silent_brings_requests_home_at_once() -> None:
    """No connection breaks, and the request has a minute: a ping that stays unanswered decides."""
    async with regions() as pair:
        pair.far_worker.answer = lambda _: None
        waiting = asyncio.create_task(pair.infer(timeout=60.0))
        await until(lambda: bool(pair.far_worker.held))
        pair.cable.freeze()
        answer = await waiting
        links = len(pair.home.planner.reports)
        await until(
            lambda: any(not each.region_links for each in pair.home.planner.reports[links:])
        )
        pair.cable.thaw()
        pair.far_worker.answer = computed
        await until(lambda: bool(pair.home.planner.reports[-1].region_links))

    assert answer.parameters["model_variant"].string_param == "variant-near"


async def test_answers_in_parts_leave_too() -> None:
    """Each part as it comes, and the receipt with the last; a cut ends what has begun."""
    async with regions() as pair:
        pair.far_worker.answer, before = lambda _: None, len(pair.far_worker.works)
        call = await sent(stream(pair.home), [infer_request(name="x")])
        await until(lambda: len(pair.far_worker.works) == before + 1)
        work = pair.far_worker.held[-1]
        pair.far_worker.say(part(work, "one"), part(work, "two", more=False))
        found = await answers(call)

        call = await sent(stream(pair.home), [infer_request(name="y")])
        await until(lambda: len(pair.far_worker.works) == before + 2)
        pair.far_worker.say(part(pair.far_worker.held[-1], "one"))
        replies = aiter(call)
        await anext(replies)
        pair.cable.freeze()
        broken = await anext(replies)

    assert texts(found) == ["one", "two"]
    assert [final(each) for each in found] == [False, True]
    assert found[-1].infer_response.parameters["region"].string_param == "far"
    assert found[-1].infer_response.parameters["carbon_gco2e"].double_param > 0
    assert "in the middle" in broken.error_message
