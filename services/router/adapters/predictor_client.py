"""The predictor's client: requests predictions of answers' lengths, and reports the lengths.

No request waits for it. A prediction that is late ranks its request again; without one a request
keeps the rank of its arrival. What cannot be sent at once is dropped, so that the memory for the
predictor is bounded.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1 import predictor_pb2_grpc as pb_grpc
from inference import grpc_service_pb2 as oip
from services.kit.api_requests import PATH_PARAMETER, document, last_text
from services.kit.clock import Clock
from services.kit.errors import InvalidArgument
from services.kit.net import is_host
from services.kit.rpc.reconnect import Reconnector
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.boost import decile_at
from services.router.core.worker_port import Result

if TYPE_CHECKING:
    PredictCall = grpc.aio.StreamStreamCall[pb.PredictRequest, pb.PredictResponse]

_MAX_OPEN = 4096
_MAX_LENGTHS = 1024
_MAX_PROMPT_BYTES = 64 * 2**10  # of a prompt that is reported because the predictor has no key
_BATCH_BYTES = 2**20  # of lengths in one message; a message may have 16 MiB
_REPORT_S = 1.0
_REPORT_TIMEOUT_S = 5.0
_MOST_BODY_BYTES = 2**20
_PROMPT_NAMES = ("text_input", "prompt")
_MAX_UINT32 = 2**32 - 1
_SIZE_BYTES = 4  # of an element of a BYTES tensor

CountPrediction = Callable[[str, str, float], None]
"""Counts a prediction: model, source (of the proto, in lower case), time it took, s."""


class _Question(NamedTuple):
    dispatcher: Dispatcher
    pending: PendingRequest
    requested_s: float


class PredictorClient:
    """A stream to the predictor, reopened when it breaks.

    Args:
        open_channel: Opens a channel to the predictor.
        clock: Time.
        count: Counts predictions.
    """

    def __init__(
        self, open_channel: Callable[[], grpc.aio.Channel], clock: Clock, count: CountPrediction
    ) -> None:
        self._open_channel = open_channel
        self._clock = clock
        self._count = count
        self._predictor = Reconnector("predictor", clock)
        self._open: dict[int, _Question] = {}
        self._unsent: dict[int, _Question] = {}
        self._prompt_keys: dict[int, bytes] = {}  # of open requests that have a prediction
        self._lengths: deque[pb.Observation] = deque(maxlen=_MAX_LENGTHS)
        self._wake = asyncio.Event()

    # ---- the engine ----------------------------------------------------------------------------

    def request_prediction(self, dispatcher: Dispatcher, pending: PendingRequest) -> None:
        """As `LengthPort`: with the next message, if not too many are open."""
        if len(self._open) < _MAX_OPEN:
            question = _Question(dispatcher, pending, self._clock.monotonic())
            number = pending.request.number
            self._open[number] = self._unsent[number] = question
            self._wake.set()

    def end(self, pending: PendingRequest, result: Result | None) -> None:
        """As `LengthPort`: lengths are reported within a second, if there are not too many."""
        number = pending.request.number
        key = self._prompt_keys.pop(number, None)
        if self._open.pop(number, None) is not None:
            self._unsent.pop(number, None)
        if result is None or result.cost is None or not result.cost.output_tokens:
            return
        observation = pb.Observation(
            model=pending.request.model,
            output_tokens=result.cost.output_tokens,
            truncated=was_truncated(result.response),
        )
        if key:
            observation.prompt_key = key
        else:
            prompt = prompt_of(pending.request.body)
            if prompt is None or len(prompt) > _MAX_PROMPT_BYTES:
                return
            observation.prompt, observation.tenant = prompt, tenant_of(pending)
        self._lengths.append(observation)

    # ---- the predictor -------------------------------------------------------------------------

    async def run(self) -> None:
        """Request predictions and report lengths until cancelled."""
        async with self._open_channel() as channel, asyncio.TaskGroup() as tasks:
            stub: pb_grpc.PredictorServiceAsyncStub = pb_grpc.PredictorServiceStub(channel)
            predicting = self._predictor.run(lambda: self._session(stub))
            tasks.create_task(predicting, name="router.lengths.predict")
            tasks.create_task(self._report(stub), name="router.lengths.report")

    async def _session(self, stub: pb_grpc.PredictorServiceAsyncStub) -> None:
        """Exchange requests and predictions until the stream ends."""
        self._unsent = dict(self._open)  # the last stream may not have carried them
        self._wake.set()
        call = stub.Predict()
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(call), name="router.lengths.write")
            try:
                async for response in call:
                    self._predictor.connected()
                    self._use(response)
            finally:
                writer.cancel()

    async def _write(self, call: PredictCall) -> None:
        """Send requests for predictions, oldest first, without those that are no longer needed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                number = next(iter(self._unsent))
                dispatcher, pending, _ = self._unsent.pop(number)
                prompt = prompt_of(pending.request.body)
                if prompt is None or not dispatcher.uses_length(pending):
                    self._open.pop(number, None)
                    continue
                message = pb.PredictRequest(
                    id=number,
                    model=pending.request.model,
                    prompt=prompt,
                    max_tokens=limit_of(pending.request.max_tokens),
                    tenant=tenant_of(pending),
                )
                try:
                    await call.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the reader sees the same end, and reports it

    def _use(self, response: pb.PredictResponse) -> None:
        question = self._open.pop(response.id, None)
        length_decile = decile_of(response)
        if question is None or length_decile is None:
            return
        request = question.pending.request
        self._prompt_keys[request.number] = response.prompt_key
        question.dispatcher.predict_length(question.pending, length_decile, tokens_of(response))
        source = pb.Source.Name(response.source).removeprefix("SOURCE_").lower()
        took_s = self._clock.monotonic() - question.requested_s
        self._count(request.model, source, took_s)

    async def _report(self, stub: pb_grpc.PredictorServiceAsyncStub) -> None:
        """Report lengths periodically; those that the predictor does not take are lost."""
        while True:
            await self._clock.sleep(_REPORT_S)
            try:
                while self._lengths:
                    request = pb.ObserveRequest(observations=batch(self._lengths))
                    await stub.Observe(request, timeout=_REPORT_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                self._lengths.clear()


def batch(lengths: deque[pb.Observation]) -> list[pb.Observation]:
    """Take items from the left that fit into one message, at least one."""
    taken = [lengths.popleft()]
    room_bytes = _BATCH_BYTES - taken[0].ByteSize()
    while lengths and (room_bytes := room_bytes - lengths[0].ByteSize()) >= 0:
        taken.append(lengths.popleft())
    return taken


def decile_of(response: pb.PredictResponse) -> int | None:
    """Return the decile that a request is ranked by; None: the prediction has no valid rank."""
    return decile_at(response.rank if response.HasField("rank") else math.nan)


def tokens_of(response: pb.PredictResponse) -> float:
    """Return the predicted length, tokens; 0: the prediction has no valid one."""
    tokens = response.expected_tokens
    return tokens if 0 < tokens <= _MAX_UINT32 else 0.0


def tenant_of(pending: PendingRequest) -> str:
    """Return the tenant of a request's prompt; "": clients of its host are not distinguished."""
    client = pending.client()
    return "" if is_host(client) else client


def limit_of(max_tokens: int) -> int:
    """Return a limit of an answer's tokens; 0: there is none that a prediction could take in."""
    return max_tokens if max_tokens <= _MAX_UINT32 else 0


def prompt_of(body: bytes) -> bytes | None:
    """Return the first element of the prompt's tensor; None: there is no prompt.

    Args:
        body: Serialized inference.ModelInferRequest.
    """
    try:
        request = oip.ModelInferRequest.FromString(body)
    except DecodeError:  # the worker reports it to the client
        return None
    for index, tensor in enumerate(request.inputs):
        if tensor.name in _PROMPT_NAMES and tensor.datatype == "BYTES":
            if index < len(request.raw_input_contents):
                first = _first(request.raw_input_contents[index])
                return _last_text(first) if PATH_PARAMETER in request.parameters else first
            return next(iter(tensor.contents.bytes_contents), None)
    return None


def _last_text(body: bytes | None) -> bytes | None:
    """Return the last message in a body of the OpenAI API, or its prompt; None: it has none.

    None, too, for a body that would hold the event loop: most of it is pictures, or a document.
    """
    try:
        found = document(body or b"", _MOST_BODY_BYTES)
    except InvalidArgument:
        return None
    return last_text(found).encode(errors="replace") or None


def was_truncated(response: bytes) -> bool:
    """Return whether an answer was cut off: its `finish_reason` is "length".

    Args:
        response: Serialized inference.ModelInferResponse, the answer's last.
    """
    try:
        given = oip.ModelInferResponse.FromString(response).parameters
    except DecodeError:  # the client sees it
        return False
    return "finish_reason" in given and given["finish_reason"].string_param == "length"


def _first(raw: bytes) -> bytes | None:
    """Return the first of elements that each follow their size, 4 bytes, little-endian."""
    end = _SIZE_BYTES + int.from_bytes(raw[:_SIZE_BYTES], "little")
    return raw[_SIZE_BYTES:end] if len(raw) >= max(end, _SIZE_BYTES) else None
