"""Streams to workers: one channel and one bidirectional call each, reopened as they break."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.kit.clock import Clock
from services.kit.request_cost import Cost, Usage
from services.kit.rpc.reconnect import ConnectionLost, Reconnector, raise_if_cancelled
from services.router.core.frames import FRAME_BYTES, frame, take
from services.router.core.model import Instance, Request
from services.router.core.worker_port import Hello, Result, WorkerListener

if TYPE_CHECKING:
    ExecuteCall = grpc.aio.StreamStreamCall[bytes, pb.ExecuteResponse]

_EXECUTE = f"/{pb.DESCRIPTOR.services_by_name['WorkerService'].full_name}/Execute"

_MAX_TURNS = 32  # of the event loop, for a frame to gather; so many without a request end it:
_EMPTY_TURNS = 3

OpenChannel = Callable[[str], grpc.aio.Channel]


class WorkerStreams:
    """All streams; enter it to open any, leave it to end them all."""

    def __init__(self, open_channel: OpenChannel, clock: Clock) -> None:
        self._open_channel = open_channel
        self._clock = clock
        self._tasks = asyncio.TaskGroup()
        self._streams: set[WorkerStream] = set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for stream in tuple(self._streams):
            stream.close()
        await self._tasks.__aexit__(kind, error, traceback)

    def connect(self, instance: Instance, listener: WorkerListener) -> WorkerStream:
        """Return a stream to a worker and begin to open it."""
        stream = WorkerStream(instance, listener, self._open_channel, self._clock)
        stream.task = self._tasks.create_task(
            stream.run(), name=f"router.worker[{instance.endpoint}]"
        )
        self._streams.add(stream)
        stream.task.add_done_callback(lambda _: self._streams.discard(stream))
        return stream


class WorkerStream:
    """A stream to one worker.

    Attributes:
        task: Runs `run`; set by the one that starts it.
    """

    task: asyncio.Task[None]

    def __init__(
        self,
        instance: Instance,
        listener: WorkerListener,
        open_channel: OpenChannel,
        clock: Clock,
    ) -> None:
        self._instance = instance
        self._listener = listener
        self._open_channel = open_channel
        self._clock = clock
        self._worker = Reconnector(f"worker {instance.endpoint} of {instance.segment_id}", clock)
        self._outbox: deque[Request] = deque()
        self._withdrawn: list[int] = []
        self._unanswered = 0
        self._alone = True
        self._wake = asyncio.Event()

    def send(self, request: Request) -> None:
        """Send a request with the next frame."""
        self._outbox.append(request)
        self._wake.set()

    def withdraw(self, number: int) -> None:
        """Withdraw a request whose caller has gone, with the next frame."""
        self._withdrawn.append(number)
        self._wake.set()

    def close(self) -> None:
        """End the stream for good."""
        self.task.cancel()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        await self._worker.run(self._session)

    async def _session(self) -> None:
        """Carry requests and results until the stream ends."""
        try:
            async with self._open_channel(self._instance.endpoint) as channel:
                await self._exchange(_execute(channel))
        except* (grpc.aio.AioRpcError, ConnectionLost):
            self._broken()
            raise
        self._broken()

    async def _exchange(self, call: ExecuteCall) -> None:
        async with asyncio.TaskGroup() as tasks:
            name = f"router.worker[{self._instance.endpoint}].write"
            writer = tasks.create_task(self._write(call), name=name)
            try:
                async for response in call:
                    self._receive(response)
            finally:
                writer.cancel()

    def _broken(self) -> None:
        raise_if_cancelled()  # closed: the listener may have another stream to this instance
        unseen = {request.number for request in self._outbox}
        self._unanswered = 0
        self._outbox.clear()
        self._withdrawn.clear()
        self._listener.broken(self._instance, unseen)

    def _receive(self, response: pb.ExecuteResponse) -> None:
        if response.HasField("hello"):
            self._greet(response.hello)
        if response.draining:  # before the results: what is refused must not come back here
            self._listener.draining(self._instance)
        if response.credits:  # before the results: what they free may no longer be there to take
            self._listener.credits(self._instance, response.credits)
        if response.results:
            results = [to_result(result) for result in response.results]
            self._unanswered -= sum(not result.more for result in results)
            self._listener.results(self._instance, results)

    def _greet(self, hello: pb.Hello) -> None:
        """Take a worker's hello.

        Raises:
            ConnectionLost: Another worker has the address by now.
        """
        wanted = (self._instance.segment_id, self._instance.model)
        if (hello.segment_id, hello.model) != wanted:
            raise ConnectionLost(
                f"{self._instance.endpoint} is {hello.segment_id!r} for {hello.model!r},"
                f" expected {wanted[0]!r} for {wanted[1]!r}"
            )
        self._worker.connected()
        credits_ = hello.credits or self._instance.credits
        self._listener.hello(
            self._instance,
            Hello(max(credits_, 1), hello.metadata, hello.decoupled, hello.in_batches),
        )

    async def _write(self, call: ExecuteCall) -> None:
        """Send requests as they come; while a frame leaves, the next one gathers."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox or self._withdrawn:
                await self._gather()
                try:
                    await call.write(self._next_frame())
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the reader sees the same end, and reports it

    async def _gather(self) -> None:
        """Let the event loop turn while that brings requests for the next frame.

        grpc.aio takes in about one call per turn, so a frame that left at once would carry one
        request however many are coming. No time is waited. While requests come one by one, they
        leave at once.
        """
        if self._alone and not self._unanswered:
            return
        known, empty_turns = 0, 0
        for _ in range(_MAX_TURNS):
            if self._outbox and len(self._outbox[0].body) > FRAME_BYTES:
                return
            empty_turns = 0 if len(self._outbox) > known else empty_turns + 1
            if empty_turns > _EMPTY_TURNS:
                return
            known = len(self._outbox)
            await asyncio.sleep(0)

    def _next_frame(self) -> bytes:
        now_s = self._clock.monotonic()
        work = take(self._outbox)
        self._unanswered += len(work)
        self._alone = len(work) <= 1
        withdrawn: list[int] = []
        if not self._outbox:  # a withdrawal must not overtake its work
            withdrawn, self._withdrawn = self._withdrawn, []
        return frame(work, withdrawn, now_s)


def _execute(channel: grpc.aio.Channel) -> ExecuteCall:
    """Open a stream that takes frames as bytes."""
    method: grpc.aio.StreamStreamMultiCallable[bytes, pb.ExecuteResponse] = channel.stream_stream(
        _EXECUTE, response_deserializer=pb.ExecuteResponse.FromString
    )
    return method()


def to_result(result: pb.Result) -> Result:
    """Return a worker's result as a value of the core."""
    cost = None
    if result.HasField("receipt"):
        receipt = result.receipt
        cost = Cost(
            energy_j=receipt.energy_j,
            idle_energy_j=receipt.idle_energy_j,
            method=receipt.energy_method,
            queue_s=receipt.queue_s,
            compute_s=receipt.compute_s,
            batch_size=max(receipt.batch_size, 1),
            items=max(receipt.items, 1),
            usage=_usage(receipt),
        )
    if result.status:
        return Result(result.id, result.status, result.message, cost=cost)
    return Result(result.id, response=result.response, cost=cost, more=result.more)


def _usage(receipt: pb.Receipt) -> Usage | None:
    if not receipt.input_tokens:
        return None
    return Usage(
        receipt.input_tokens, receipt.output_tokens, receipt.first_token_s, receipt.token_s
    )
