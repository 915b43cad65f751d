"""Sends generated requests to workers, batches or rounds of texts, and records each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any, Final

import grpc
import numpy as np

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from inference import grpc_service_pb2 as oip
from services.gpuagent.profiling.core.samples import Effort, Samples, Timed
from services.gpuagent.profiling.core.text_rounds import STEPS, Round, of_phases
from services.gpuagent.worker import tensors
from services.gpuagent.worker.tensors import Array
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.profiles.core.measurement import Measurement
from services.kit.rpc import dial

IN_FLIGHT: Final = 2
"""Batches per worker: one runs while the next waits, so that no worker is ever idle."""

OpenChannel = Callable[[str], grpc.aio.Channel]
"""Dials a worker."""

Call = grpc.aio.StreamStreamCall[pb.ExecuteRequest, pb.ExecuteResponse]


async def drive(
    endpoints: Sequence[str],
    point: Measurement,
    effort: Effort,
    clock: Clock,
    open_channel: OpenChannel = dial,
) -> Measurement:
    """Measure full batches of a point, all workers busy all the time.

    Args:
        endpoints: "host:port" of the workers.
        point: What runs there.
        effort: How long.
        clock: Time.
        open_channel: Dials a worker.

    Raises:
        FailedPrecondition: A worker failed, or does not take such batches.
    """
    samples = Samples(effort, point.batch_size, clock.monotonic())
    try:
        async with asyncio.TaskGroup() as tasks:
            for endpoint in endpoints:
                tasks.create_task(
                    _busy(endpoint, samples, clock, open_channel), name=f"drive {endpoint}"
                )
    except ExceptionGroup as group:
        failures = group.subgroup(FailedPrecondition)
        if failures is None:
            raise
        raise failed(str(failures.exceptions[0])) from group
    return samples.added_to(point)


async def _busy(endpoint: str, samples: Samples, clock: Clock, open_channel: OpenChannel) -> None:
    """Keep one worker busy until there are enough samples of all workers together."""
    async with greeted(endpoint, open_channel) as (call, hello):
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
async def greeted(endpoint: str, open_channel: OpenChannel) -> AsyncIterator[tuple[Call, pb.Hello]]:
    """Open a stream to a worker while the block runs, and read its hello.

    Raises:
        FailedPrecondition: The worker went away.
    """
    async with open_channel(endpoint) as channel:
        call: Call = WorkerServiceStub(channel).Execute(wait_for_ready=True)
        try:
            yield call, (await _read(call)).hello
        except grpc.aio.AioRpcError as error:
            raise failed(f"a worker went away: {error.details()}") from error
        finally:
            call.cancel()


async def results(call: Call) -> Sequence[pb.Result]:
    """Return the next results of a worker.

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
    return generator.random(shape) if datatype in _FLOATS else tensors.blank(datatype, shape)


LEAST_CYCLES: Final = 3
"""Of the three rounds each, unless `Effort.least_batches` is less; two at least."""

_FIRST_ANSWER: Final = 4
_LONGEST_ANSWER: Final = 4096
_TRIES: Final = 8  # of a round in which an answer ends by itself
_WORDS: Final = (
    "river", "stone", "green", "paper", "cloud", "seven", "horse",
    "table", "under", "light", "winter", "sugar", "metal", "garden",
)  # fmt: skip


async def drive_texts(
    endpoint: str,
    point: Measurement,
    effort: Effort,
    clock: Clock,
    open_channel: OpenChannel = dial,
) -> Measurement:
    """Measure a point of a language model: `batch_size` texts at a time.

    Args:
        endpoint: "host:port" of the worker.
        point: What runs there; `prompt_tokens` is the length of each prompt.
        effort: How long.
        clock: Time.
        open_channel: Dials the worker.

    Raises:
        FailedPrecondition: The worker failed, or cannot take such texts.
    """
    async with greeted(endpoint, open_channel) as (call, hello):
        texts = _Texts(call, hello.model, point.batch_size, Random(point.prompt_tokens))  # noqa: S311  # texts, no secret
        await texts.learn_words(point.prompt_tokens)
        answer = _FIRST_ANSWER
        while answer <= _LONGEST_ANSWER:
            rounds = await _cycles(texts, answer, effort, clock)
            if rounds is not None:
                return of_phases(replace(point, energy_method=texts.energy_method), *rounds)
            answer *= 2
    raise failed(f"{point.batch_size} texts never answer at the same time: too few slots")


async def _cycles(
    texts: _Texts, answer: int, effort: Effort, clock: Clock
) -> Sequence[list[Round]] | None:
    """Return rounds of prompts, of shorter and of longer answers; None: they must be longer."""
    began_s = clock.monotonic()
    rounds: dict[int, list[Round]] = {1: [], answer: [], answer + STEPS: []}
    while True:
        cycle = [await texts.round(tokens) for tokens in rounds]
        if not all(each.together for each in cycle[1:]):
            return None
        now_s = clock.monotonic()
        if now_s - began_s < effort.warm_up_s:
            continue
        for each in cycle:
            rounds[each.answer_tokens].append(each)
        enough = len(rounds[1]) >= max(min(LEAST_CYCLES, effort.least_batches), 2)
        if enough and now_s - began_s >= effort.warm_up_s + effort.least_s:
            return list(rounds.values())


@dataclass(slots=True)
class _Texts:
    """Texts for one worker. Attributes: energy_method (of the last receipt)."""

    call: Call
    model: str
    requests: int
    random: Random
    words: int = 1
    energy_method: str = ""
    _ids: count[int] = field(default_factory=count)

    async def learn_words(self, prompt_tokens: int) -> None:
        """Find how many words have so many tokens."""
        self.words = 40
        (receipt,) = await self._answers(1, 1)
        self.words = max(round(self.words * prompt_tokens / receipt.input_tokens), 1)

    async def round(self, answer_tokens: int) -> Round:
        """Send requests at once, and wait for all answers."""
        for _ in range(_TRIES):
            receipts = await self._answers(self.requests, answer_tokens)
            if all(each.output_tokens == answer_tokens for each in receipts):
                break
        else:
            raise failed(f"answers of {answer_tokens} tokens end by themselves, or do not fit")
        self.energy_method = receipts[0].energy_method
        last = max(receipts, key=lambda each: each.first_token_s)
        ends_s = [each.queue_s + each.compute_s for each in receipts]
        return Round(
            answer_tokens,
            sum(each.input_tokens for each in receipts),
            max(ends_s),
            last.token_s * (answer_tokens - 1),
            sum(each.energy_j for each in receipts),
            max(each.first_token_s for each in receipts) <= min(ends_s),
        )

    async def _answers(self, requests: int, tokens: int) -> Sequence[pb.Receipt]:
        work = [pb.Work(id=next(self._ids), request=self._request(tokens)) for _ in range(requests)]
        await self.call.write(pb.ExecuteRequest(work=work))
        found: list[pb.Receipt] = []
        while len(found) < requests:
            found += [each.receipt for each in await results(self.call) if not each.more]
        return found

    def _request(self, tokens: int) -> bytes:
        """Return a request whose prompt is like no other: hardly any of it is cached."""
        words = " ".join(self.random.choices(_WORDS, k=self.words))
        message = oip.ModelInferRequest(model_name=self.model)
        message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(tensors.encode(np.array([words]), tensors.BYTES))
        message.parameters["max_tokens"].int64_param = tokens
        message.parameters["temperature"].double_param = 2.0  # the likeliest may end the text
        message.parameters["chat"].bool_param = False
        return message.SerializeToString()
