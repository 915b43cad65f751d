"""The predictor, seen from here: says whose answers will be short, is told how long they were.

Nothing waits for it. A prediction that is late gives its request its place anew; without one a
request keeps the place that it has by its arrival. What cannot be asked or told at once is dropped:
everything kept for the predictor is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import grpc

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceStub
from services.kit.clock import Clock
from services.router.adapters.prompt_reader import prompt_of
from services.router.adapters.reconnect import Peer
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.length_port import class_at
from services.router.core.model import Request

if TYPE_CHECKING:
    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub

    PredictCall = grpc.aio.StreamStreamCall[pb.PredictRequest, pb.PredictResponse]

_MOST_ASKED = 4096
_MOST_TOLD = 1024
_MOST_TOLD_BYTES = 64 * 2**10  # of a prompt that the predictor has no key of
_BATCH_BYTES = 2**20  # of lengths told in one message; a message may have 16 MiB
_TELL_S = 1.0
_TELL_TIMEOUT_S = 5.0

Count = Callable[[str, str, float], None]
"""Counts a prediction: model, source (of the proto, in small letters), how long it took, s."""


class _Question(NamedTuple):
    dispatcher: Dispatcher
    request: Request
    asked_s: float


class Predictor:
    """A stream to the predictor, that reopens itself.

    Args:
        open_channel: Opens a channel to it.
        clock: Time.
        count: Counts predictions.
    """

    def __init__(
        self, open_channel: Callable[[], grpc.aio.Channel], clock: Clock, count: Count
    ) -> None:
        self._open_channel = open_channel
        self._clock = clock
        self._count = count
        self._peer = Peer("predictor", clock)
        self._open: dict[int, _Question] = {}
        self._unsent: dict[int, _Question] = {}
        self._lengths: deque[pb.Observation] = deque(maxlen=_MOST_TOLD)
        self._wake = asyncio.Event()

    # ---- the engine ----------------------------------------------------------------------------

    def ask(self, dispatcher: Dispatcher, request: Request) -> None:
        """As `Lengths`: with the next message, if not too many are open."""
        if len(self._open) < _MOST_ASKED:
            question = _Question(dispatcher, request, self._clock.monotonic())
            self._open[request.number] = self._unsent[request.number] = question
            self._wake.set()

    def ended(self, number: int) -> None:
        """As `Lengths`."""
        if self._open.pop(number, None) is not None:
            self._unsent.pop(number, None)

    def learn(self, request: Request, output_tokens: int) -> None:
        """As `Lengths`: within a second, if not too many are to be told."""
        if not output_tokens:
            return
        length = pb.Observation(model=request.model, output_tokens=output_tokens)
        if request.prompt_key:
            length.prompt_key = request.prompt_key
        else:
            prompt = prompt_of(request.body)
            if prompt is None or len(prompt) > _MOST_TOLD_BYTES:
                return
            length.prompt = prompt
        self._lengths.append(length)

    # ---- the predictor -------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask and tell until cancelled."""
        async with self._open_channel() as channel, asyncio.TaskGroup() as tasks:
            stub: PredictorServiceAsyncStub = PredictorServiceStub(channel)
            tasks.create_task(self._ask(stub), name="router.lengths.ask")
            tasks.create_task(self._tell(stub), name="router.lengths.tell")

    async def _ask(self, stub: PredictorServiceAsyncStub) -> None:
        """Keep a stream open."""
        while True:
            self._unsent = dict(self._open)  # who waits and was not told by the last stream
            self._wake.set()
            await self._session(stub.Predict())
            await self._peer.before_retry()

    async def _session(self, call: PredictCall) -> None:
        """Carry questions and answers until the stream ends."""
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(call), name="router.lengths.write")
            try:
                async for response in call:
                    self._peer.here()
                    self._told(response)
                self._peer.lost("it ended the stream")
            except grpc.aio.AioRpcError as error:
                self._peer.lost_call(error)
            finally:
                writer.cancel()

    async def _write(self, call: PredictCall) -> None:
        """Send questions, the oldest first; who is served meanwhile need not be asked about."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                number = next(iter(self._unsent))
                question = self._unsent.pop(number)
                prompt = prompt_of(question.request.body)
                if prompt is None or question.request.holder is not None:
                    self._open.pop(number, None)
                    continue
                message = pb.PredictRequest(id=number, model=question.request.model, prompt=prompt)
                try:
                    await call.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the reader sees the same end, and tells

    def _told(self, response: pb.PredictResponse) -> None:
        question = self._open.pop(response.id, None)
        length_class = class_of(response)
        if question is None or length_class is None:
            return
        request = question.request
        request.prompt_key = response.prompt_key
        question.dispatcher.foretell(request, length_class)
        source = pb.Source.Name(response.source).removeprefix("SOURCE_").lower()
        took_s = self._clock.monotonic() - question.asked_s
        self._count(request.model, source, took_s)

    async def _tell(self, stub: PredictorServiceAsyncStub) -> None:
        """Tell lengths now and then; those that it does not take are lost."""
        while True:
            await self._clock.sleep(_TELL_S)
            try:
                while self._lengths:
                    request = pb.ObserveRequest(observations=batch(self._lengths))
                    await stub.Observe(request, timeout=_TELL_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                self._lengths.clear()


def batch(lengths: deque[pb.Observation]) -> list[pb.Observation]:
    """Take from the left what fits into one message, and at least one."""
    taken = [lengths.popleft()]
    room_bytes = _BATCH_BYTES - taken[0].ByteSize()
    while lengths and (room_bytes := room_bytes - lengths[0].ByteSize()) >= 0:
        taken.append(lengths.popleft())
    return taken


def class_of(response: pb.PredictResponse) -> int | None:
    """Return the class that a request is ranked by; None: it is told none that there is.

    By its place among the model's other requests where that is known: for order, who is shorter
    than whom matters, not which class is likeliest.
    """
    rank = response.rank if response.HasField("rank") else None
    return class_at(rank, response.length_class)
