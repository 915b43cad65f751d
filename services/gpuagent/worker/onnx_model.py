"""A model that this process runs itself, with ONNX Runtime."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Final

import numpy as np

from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.model_port import Answers, Model, ModelFailed, SendPart
from services.gpuagent.worker.onnx_engine import Engine
from services.gpuagent.worker.tensor_messages import Inference
from services.gpuagent.worker.tensors import Array
from services.gpuagent.worker.work_messages import Body
from services.kit.errors import ServiceError

NAN_PATIENCE: Final = 5
"""NaN answers in a row, to inputs without, after which the model is looked into."""


class LocalModel(Model[Inference]):
    """An engine, with the thread it blocks.

    NaN in an answer, of inputs without, is an error: no client can use it. That alone says nothing
    of the model: a client may request the logarithm of -1. But after several in a row the last
    request that had a sound answer is run again. Where it has none now, or no request ever had one,
    the model itself is spoilt.

    Args:
        engine: The loaded file.
        thread: Where it runs.
        passes_on: Answers have every output, whichever are requested.
    """

    def __init__(self, engine: Engine, thread: Executor, *, passes_on: bool = False) -> None:
        self._passes_on = passes_on
        self._engine = engine
        self._thread = thread
        self._spoilt_in_a_row = 0
        self._suspected = asyncio.Event()
        self._witness: Inference | None = None
        self.metadata = tensor_messages.metadata(engine.signature)
        self.execution_provider = engine.provider
        self.max_batch, self.alone = int(not engine.signature.batches), engine.signature.alone
        self._receipt = tensor_messages.provider_parameter(engine.provider)

    def read(self, data: Body, deadline_s: float) -> Inference:  # noqa: ARG002 - it never waits
        """Read and check a request; see `tensor_messages.parse`."""
        return tensor_messages.parse(data, self._engine.signature, every_output=self._passes_on)

    async def compute(
        self,
        requests: Sequence[Inference],
        send: SendPart,  # noqa: ARG002 - a network answers at once
    ) -> Answers:
        """Run a batch.

        Raises:
            Exception: Whatever ONNX Runtime makes of the inputs; its classes share no base.
        """
        outputs = await self._run(requests)
        parts = (outputs,) if len(requests) == 1 else _split(outputs, requests)
        return map(self._answer, requests, parts)

    async def failure(self) -> str:
        """Wait until the model answers nothing but NaN."""
        while True:
            await self._suspected.wait()
            if self._witness is None or _nan(await self._run([self._witness])):
                return "it answers NaN to requests without any"
            self._suspected.clear()

    def _run(self, inferences: Sequence[Inference]) -> Awaitable[Sequence[Array]]:
        """Run a batch on the device's thread, which also copies what must be: maybe gigabytes."""
        return asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._engine.run(_joined(inferences))
        )

    def _answer(self, inference: Inference, outputs: Sequence[Array]) -> bytes | ServiceError:
        if not _nan(outputs):
            self._spoilt_in_a_row = 0
            if self._witness is None or inference.size_bytes <= self._witness.size_bytes:
                self._witness = inference  # the smallest, as it stays in memory
        elif not _nan(inference.feeds.values()):
            self._suspect()
            return ModelFailed("the model's answer to this request is not a number (NaN)")
        try:
            body = tensor_messages.response(inference, self._engine.signature, outputs)
        except ServiceError as error:
            return error
        return body + self._receipt

    def _suspect(self) -> None:
        self._spoilt_in_a_row += 1
        if self._spoilt_in_a_row >= NAN_PATIENCE:
            self._spoilt_in_a_row = 0
            self._suspected.set()


def _nan(arrays: Iterable[Array]) -> bool:
    for array in arrays:  # noqa: SIM110 - a generator would double the cost of small answers
        if array.dtype.kind == "f" and np.isnan(array).any():
            return True
    return False


def _joined(inferences: Sequence[Inference]) -> dict[str, Array]:
    """Return the inputs of all requests, one after another in each tensor.

    Runtimes read a tensor where it lies: at an address that suits its datatype.
    """
    first = inferences[0]
    if len(inferences) == 1:
        return {name: np.require(each, requirements="A") for name, each in first.feeds.items()}
    return {
        name: np.concatenate([inference.feeds[name] for inference in inferences])
        for name in first.feeds
    }


def _split(outputs: Sequence[Array], requests: Sequence[Inference]) -> Sequence[Sequence[Array]]:
    """Return each request's part of the outputs.

    Raises:
        ValueError: An output has not one row per item: the model mixes requests.
    """
    items = [request.items for request in requests]
    if any(len(output) != sum(items) for output in outputs):
        raise ValueError("an output of the batch has not one row per item")
    ends = np.cumsum(items)[:-1]
    return [list(parts) for parts in zip(*(np.split(out, ends) for out in outputs), strict=True)]
