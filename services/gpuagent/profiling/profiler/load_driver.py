"""Keeps every worker of a segment busy, and takes down what each batch took."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from services.gpuagent.profiling.core.samples import Effort, Samples, Summary, Timed
from services.gpuagent.profiling.profiler import payload
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.rpc import dial

if TYPE_CHECKING:
    from services.kit.config import Tls

IN_FLIGHT: Final = 2
"""Batches per worker: one runs while the next waits, so that no worker is ever idle."""

Call = grpc.aio.StreamStreamCall[pb.ExecuteRequest, pb.ExecuteResponse]


async def drive(
    endpoints: Sequence[str],
    items: int,
    effort: Effort,
    clock: Clock,
    tls: Tls | None = None,
) -> Summary:
    """Measure batches of `items` items, all workers busy all the time.

    Args:
        endpoints: "host:port" of the workers.
        items: Items in each batch.
        effort: How long.
        clock: Time.
        tls: For dialling the workers.

    Raises:
        FailedPrecondition: A worker failed, or does not take such batches.
    """
    samples = Samples(effort, items, clock.monotonic())
    try:
        async with asyncio.TaskGroup() as tasks:
            for endpoint in endpoints:
                tasks.create_task(_busy(endpoint, samples, clock, tls), name=f"drive {endpoint}")
    except ExceptionGroup as group:
        failures = group.subgroup(FailedPrecondition)
        if failures is None:
            raise
        raise _failed(str(failures.exceptions[0])) from group
    return samples.summary()


async def _busy(endpoint: str, samples: Samples, clock: Clock, tls: Tls | None) -> None:
    """Keep one worker busy until there are enough samples of all workers together."""
    async with dial(endpoint, tls) as channel:
        call: Call = WorkerServiceStub(channel).Execute(wait_for_ready=True)
        try:
            hello = (await _read(call)).hello
            work = payload.request(hello.metadata, hello.model, samples.items)
            await call.write(pb.ExecuteRequest(work=[_work(n, work) for n in range(IN_FLIGHT)]))
            next_id = IN_FLIGHT
            while not samples.enough(clock.monotonic()):
                results = (await _read(call)).results
                for result in results:
                    samples.add(endpoint, _timed(result), clock.monotonic())
                again = [_work(next_id + number, work) for number in range(len(results))]
                next_id += len(again)
                await call.write(pb.ExecuteRequest(work=again))
        except grpc.aio.AioRpcError as error:
            raise _failed(f"a worker went away: {error.details()}") from error
        finally:
            call.cancel()


async def _read(call: Call) -> pb.ExecuteResponse:
    response: Any = await call.read()
    if not isinstance(response, pb.ExecuteResponse):
        raise _failed("a worker ended its stream")
    return response


def _work(number: int, request: bytes) -> pb.Work:
    return pb.Work(id=number, request=request)


def _timed(result: pb.Result) -> Timed:
    if result.status:
        raise _failed(f"a worker answered {result.status}: {result.message}")
    receipt = result.receipt
    return Timed(receipt.compute_s, receipt.energy_j, receipt.energy_method)


def _failed(message: str) -> FailedPrecondition:
    return FailedPrecondition(message, reason="DID_NOT_RUN")
