"""Keeps every worker of a segment busy, with made-up requests, and records each batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import grpc

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from services.gpuagent.profiling.core.samples import Effort, Samples, Timed
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.profiles.core.measurement import Measurement
from services.kit.rpc import dial

if TYPE_CHECKING:
    from services.kit.config import Tls


import numpy as np

from inference import grpc_service_pb2 as oip
from services.gpuagent.worker import tensors
from services.gpuagent.worker.tensors import Array

IN_FLIGHT: Final = 2
"""Batches per worker: one runs while the next waits, so that no worker is ever idle."""

Call = grpc.aio.StreamStreamCall[pb.ExecuteRequest, pb.ExecuteResponse]


async def drive(
    endpoints: Sequence[str],
    point: Measurement,
    effort: Effort,
    clock: Clock,
    tls: Tls | None = None,
) -> Measurement:
    """Measure full batches of a point, all workers busy all the time.

    Args:
        endpoints: "host:port" of the workers.
        point: What runs there.
        effort: How long.
        clock: Time.
        tls: For dialling the workers.

    Raises:
        FailedPrecondition: A worker failed, or does not take such batches.
    """
    samples = Samples(effort, point.batch_size, clock.monotonic())
    try:
        async with asyncio.TaskGroup() as tasks:
            for endpoint in endpoints:
                tasks.create_task(_busy(endpoint, samples, clock, tls), name=f"drive {endpoint}")
    except ExceptionGroup as group:
        failures = group.subgroup(FailedPrecondition)
        if failures is None:
            raise
        raise failed(str(failures.exceptions[0])) from group
    return samples.added_to(point)


async def _busy(endpoint: str, samples: Samples, clock: Clock, tls: Tls | None) -> None:
    """Keep one worker busy until there are enough samples of all workers together."""
    async with greeted(endpoint, tls) as (call, hello):
        work = request(hello.metadata, hello.model, samples.items)
        ids, fresh = count(), IN_FLIGHT
        while not samples.enough(clock.monotonic()):
            again = [pb.Work(id=next(ids), request=work) for _ in range(fresh)]
            await call.write(pb.ExecuteRequest(work=again))
            answered = await results(call)
            for each in answered:
                receipt = each.receipt
                timed = Timed(receipt.compute_s, receipt.energy_j, receipt.energy_method)
                samples.add(endpoint, timed, clock.monotonic())
            fresh = len(answered)


@asynccontextmanager
async def greeted(endpoint: str, tls: Tls | None) -> AsyncIterator[tuple[Call, pb.Hello]]:
    """Open a stream to a worker while the block runs, and hear its hello.

    Raises:
        FailedPrecondition: The worker went away.
    """
    async with dial(endpoint, tls) as channel:
        call: Call = WorkerServiceStub(channel).Execute(wait_for_ready=True)
        try:
            yield call, (await _read(call)).hello
        except grpc.aio.AioRpcError as error:
            raise failed(f"a worker went away: {error.details()}") from error
        finally:
            call.cancel()


async def results(call: Call) -> Sequence[pb.Result]:
    """Return what a worker answers next.

    Raises:
        FailedPrecondition: It answers nothing more, or an error.
    """
    found = (await _read(call)).results
    for result in found:
        if result.status:
            raise failed(f"a worker answered {result.status}: {result.message}")
    return found


async def _read(call: Call) -> pb.ExecuteResponse:
    response: Any = await call.read()
    if not isinstance(response, pb.ExecuteResponse):
        raise failed("a worker ended its stream")
    return response


def failed(message: str) -> FailedPrecondition:
    """Return the error of a point that did not run."""
    return FailedPrecondition(message, reason="DID_NOT_RUN")


_FLOATS: Final = ("FP16", "FP32", "FP64")


def request(metadata: bytes, model: str, items: int, *, seed: int = 0) -> bytes:
    """Return a serialized ModelInferRequest of `items` items.

    Floats are drawn from [0, 1); all else is 0, a valid index and token. Free dimensions besides
    the first are 1.

    Args:
        metadata: A serialized ModelMetadataResponse.
        model: What clients call it.
        items: First dimension of every input, >= 1.
        seed: Of the floats.

    Raises:
        FailedPrecondition: The model takes another number of items only.
    """
    described = oip.ModelMetadataResponse.FromString(metadata)
    generator = np.random.default_rng(seed)
    message = oip.ModelInferRequest(model_name=model)
    for tensor in described.inputs:
        first, *rest = tensor.shape or (items,)
        if first not in (-1, items):
            raise FailedPrecondition(
                f"{model} takes batches of {first} only: its input {tensor.name!r} has a first "
                "dimension that is fixed",
                reason="FIXED_BATCH",
            )
        shape = [items, *(max(size, 1) for size in rest)] if tensor.shape else []
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        array = _values(tensor.datatype, shape, generator)
        message.raw_input_contents.append(tensors.encode(array, tensor.datatype))
    return message.SerializeToString()


def _values(datatype: str, shape: list[int], generator: np.random.Generator) -> Array:
    if datatype in _FLOATS:
        return generator.random(shape)
    if datatype == tensors.BYTES:
        return np.full(shape, "", dtype=object)
    return np.zeros(shape)
