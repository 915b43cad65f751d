"""Several router processes on one port behave as one router, without a word to each other."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.config.loader import ENV_FILE
from services.kit.net import free_port
from services.kit.rpc import dial
from services.router.app import run
from services.router.runtime.processes import ChildFailed
from tests.support.router import router_service
from tests.support.waiting import until
from tests.support.worker import worker_in_process
from tests.support.worker.worker_process import flat_costs, infer_request

if TYPE_CHECKING:
    from tests.conftest import Deploy

REQUEST = infer_request([[0, 0]])
REQUEST.model_name = "digits"
CREDITS = 8
SHARES = {"a": 0.75, "b": 0.25}


@dataclass
class Fleet:
    """Two router processes and two workers."""

    world: router_service.World
    workers: dict[str, worker_in_process.Worker]
    stack: AsyncExitStack

    async def connect(self) -> tuple[str, grpc.aio.Channel]:
        """Open a connection; return who answers on it, once it knows where requests go."""
        channel = await self.stack.enter_async_context(dial(self.world.address))
        stub, request = RouterServiceStub(channel), router_pb2.GetStatusRequest()
        for _ in range(200):
            status = await stub.GetStatus(request, wait_for_ready=True, timeout=10)
            if status.routing_revision:
                return status.router_id, channel
            await asyncio.sleep(0.05)
        pytest.fail("a router process never learned where requests go")

    async def one_each(self) -> dict[str, grpc.aio.Channel]:
        """Return a connection to each process; which one gets a connection is the kernel's."""
        found: dict[str, grpc.aio.Channel] = {}
        async with asyncio.timeout(45):
            while len(found) < 2:
                name, channel = await self.connect()
                found.setdefault(name, channel)
        return found


@asynccontextmanager
async def fleet(folder: Path, model: Path, latency_s: float) -> AsyncIterator[Fleet]:
    async with (
        router_service.running(processes=2, max_queue=1000, report_interval_s=0.2) as world,
        AsyncExitStack() as stack,
    ):
        workers = {}
        for name in SHARES:
            (folder / name).mkdir()
            workers[name] = await stack.enter_async_context(
                worker_in_process.running(
                    folder / name,
                    model,
                    segment_id=name,
                    model="digits",
                    batch_size=CREDITS,
                    costs=flat_costs(latency_s, 1.0, batch_size=CREDITS),
                )
            )
        await world.planner.route(
            *(
                plan_pb2.Instance(
                    endpoint=worker.address, segment_id=name, variant=name, share=SHARES[name]
                )
                for name, worker in workers.items()
            )
        )
        await until(lambda: all(worker.streams == 2 for worker in workers.values()))
        yield Fleet(world, workers, stack)


def pid_of(router_id: str) -> int:
    return int(router_id.split("-")[-2])


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def infer(channel: grpc.aio.Channel, times: int, *, patient: bool = False) -> Counter[str]:
    """Send requests one after another; count the answers by worker. A patient caller reconnects."""
    stub, found = GRPCInferenceServiceStub(channel), Counter[str]()
    for _ in range(times):
        answer = await stub.ModelInfer(REQUEST, timeout=20, wait_for_ready=patient)
        found[answer.parameters["model_variant"].string_param] += 1
    return found


async def infer_all(*calls: tuple[grpc.aio.Channel, int, int]) -> Counter[str]:
    """Send requests on channels: `calls` are channel, number of callers, requests of each."""
    callers = [infer(channel, times) for channel, count, times in calls for _ in range(count)]
    return sum(await asyncio.gather(*callers), Counter[str]())


async def test_shares_credits_and_reports_of_two_processes_are_those_of_one_router(
    tmp_path: Path, model: Path
) -> None:
    """Below capacity the plan's shares hold; above it, each worker's credits; all is reported."""
    async with fleet(tmp_path, model, latency_s=0.01) as both:
        one, other = (await both.one_each()).values()
        light = await infer_all((one, 2, 40), (other, 1, 80))
        assert light["a"] / light.total() == pytest.approx(SHARES["a"], abs=0.03)

        heavy = await infer_all((one, 40, 5), (other, 10, 20))
        for worker in both.workers.values():
            # While word of a change is on its way, a quarter of them may be used twice.
            assert CREDITS / 2 < worker.credits.most <= CREDITS + 2 + CREDITS // 4

        def reported() -> int:
            return sum(r.models[0].answered for r in both.world.planner.reports)

        await until(lambda: reported() == light.total() + heavy.total() == 160 + 400)
        assert len({report.router_id for report in both.world.planner.reports}) == 2


async def test_a_killed_process_takes_only_its_own_callers_with_it_and_another_comes(
    tmp_path: Path, model: Path
) -> None:
    async with fleet(tmp_path, model, latency_s=0.02) as both:
        names = await both.one_each()
        (killed, lost), (spared, kept) = names.items()
        going_on = asyncio.create_task(infer_all((kept, 4, 25)))
        cut = [asyncio.create_task(infer(lost, 100)) for _ in range(3)]
        await until(lambda: all(worker.requests > 5 for worker in both.workers.values()))
        os.kill(pid_of(killed), signal.SIGKILL)
        errors: list[Any] = await asyncio.gather(*cut, return_exceptions=True)
        again = await infer(lost, 5, patient=True)  # the channel connects again, to any process
        untouched = await going_on

        assert [error.code() for error in errors] == [grpc.StatusCode.UNAVAILABLE] * 3
        assert (again.total(), untouched.total()) == (5, 100)
        assert spared in (now := await both.one_each())
        assert killed not in now


async def test_a_port_in_use_is_refused() -> None:
    """The processes share their port with each other, and with no other server."""
    async with router_service.running() as world:
        settings = router_service.deployment(1, 1, processes=2, listen=world.address)
        with pytest.raises(OSError, match="in use"):
            await run(settings, asyncio.Event())


async def test_processes_that_cannot_serve_end_the_service() -> None:
    settings = router_service.deployment(1, 1, processes=2)
    broken = settings.model_copy(
        update={"tls": Tls(certificate_file=Path("no"), key_file=Path("no"), ca_file=Path("no"))}
    )
    with pytest.raises(ExceptionGroup) as failed:
        await run(broken, asyncio.Event())
    assert failed.group_contains(ChildFailed, match="before it served", depth=None)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
async def test_processes_end_with_their_parent(
    deployment: Deploy, tmp_path: Path, how: signal.Signals
) -> None:
    """Terminated, it lets them drain first; killed, they notice."""
    address = f"127.0.0.1:{free_port()}"
    deployment({"router": {"listen": address, "processes": 2}})
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "router", "serve"),
        env={**os.environ, ENV_FILE: str(tmp_path / "cinquefoil.yaml")},
        stderr=asyncio.subprocess.DEVNULL,
    )
    names = set[str]()
    async with asyncio.timeout(45):
        while len(names) < 2:
            async with dial(address) as channel:
                status = await RouterServiceStub(channel).GetStatus(
                    router_pb2.GetStatusRequest(), wait_for_ready=True
                )
            names.add(status.router_id)
        parent.send_signal(how)
        exit_status = await parent.wait()
    await until(lambda: not any(alive(pid_of(name)) for name in names))

    assert exit_status == (0 if how == signal.SIGTERM else -how)
