"""Streams to workers: one connection and one bidirectional call each, reopened as they break."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.kit.clock import Clock
from services.kit.config import ExpectedServer, Tls
from services.kit.h2 import ClientStream, OnMessage, open_stream
from services.kit.owned_tasks import OwnedTasks
from services.kit.request_cost import Cost, Usage
from services.kit.rpc.certificates import client_context, server_name
from services.kit.rpc.reconnect import ConnectionLost, Reconnector, raise_if_cancelled
from services.kit.segment import MOST_BATCH
from services.kit.telemetry import logs
from services.router.adapters.answer_check import AnswerCheck, CostCheck, WrongAnswer
from services.router.core.frames import frame, take
from services.router.core.model import Instance, Request
from services.router.core.worker_port import Hello, Result
from services.router.runtime.decision_executor import DecisionExecutor

_EXECUTE = f"/{pb.DESCRIPTOR.services_by_name['WorkerService'].full_name}/Execute"

_MOST_WORD: Final = 200
_MOST_ADAPTERS: Final = 1024
_ERRORS: Final = frozenset(code.name for code in grpc.StatusCode) - {"OK"}

REDIAL_AFTER_LIE_S: Final = 10.0
"""Time without a worker whose answers could not be, s."""

MOST_KV_TOKENS: Final = 2**24
"""Tokens that one request may hold on a GPU."""

MOST_RETRY_S: Final = 3600.0
"""Longest time after which a client is sent to try again, s; a longer one is left out."""

_log = logs.get("worker")

OpenLink = Callable[[str, OnMessage, Callable[[], None]], Awaitable[ClientStream]]
"""Opens a call to a worker: its address, what takes its messages, what learns of room."""


def links(
    tls: Tls | None,
    *,
    expected: ExpectedServer | None = None,
    dead_after_s: float,
    message_bytes: int,
) -> OpenLink:
    """Return a function that opens calls to workers.

    Args:
        tls: Authority to trust, and the router's certificate; None: plaintext.
        expected: Role that workers must have; None: every certificate of the authority is a
            worker's.
        dead_after_s: Time after which a silent worker is given up, s.
        message_bytes: Maximum size of a worker's message.
    """

    async def opened(
        endpoint: str, on_message: OnMessage, on_room: Callable[[], None]
    ) -> ClientStream:
        return await open_stream(
            endpoint,
            _EXECUTE,
            on_message,
            on_room,
            context=None if tls is None else client_context(tls, "h2", expected=expected),
            server_name=None if tls is None else server_name(tls, endpoint),
            message_bytes=message_bytes,
            dead_after_s=dead_after_s,
        )

    return opened


class WorkerStreams(OwnedTasks):
    """All streams; enter it to open any, leave it to end them all."""

    def __init__(self, open_link: OpenLink, clock: Clock) -> None:
        super().__init__()
        self._open_link = open_link
        self._clock = clock

    def connect(self, instance: Instance, listener: DecisionExecutor) -> WorkerStream:
        """Return a stream to a worker and begin to open it."""
        stream = WorkerStream(instance, listener, self._open_link, self._clock)
        stream.task = self.start(stream.run(), f"router.worker[{instance.endpoint}]")
        return stream


class WorkerStream:
    """A stream to one worker.

    Attributes:
        task: Runs `run`; set by the one that starts it.
    """

    task: asyncio.Task[None]

    def __init__(
        self, instance: Instance, listener: DecisionExecutor, open_link: OpenLink, clock: Clock
    ) -> None:
        self._instance = instance
        self._listener = listener
        self._open_link = open_link
        self._clock = clock
        self._worker = Reconnector(f"worker {instance.endpoint} of {instance.segment_id}", clock)
        self._check = AnswerCheck()
        self._check_cost = CostCheck(instance.power_limit_w, clock.monotonic())
        self._outbox: deque[Request] = deque()
        self._sent: dict[int, Request] = {}
        self._lied = self._decoupled = False
        self._withdrawn: list[int] = []
        self._stream: ClientStream | None = None
        self._flushing = False

    def send(self, request: Request) -> None:
        """Send a request with the next frame."""
        self._outbox.append(request)
        if not self._flushing:
            self._flush_soon()

    def withdraw(self, number: int) -> None:
        """Withdraw a request whose caller has gone, with the next frame."""
        self._withdrawn.append(number)
        if not self._flushing:
            self._flush_soon()

    def close(self) -> None:
        """End the stream for good."""
        self.task.cancel()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        await self._worker.run(self._session)

    async def _session(self) -> None:
        """Carry requests and results until the stream ends."""
        endpoint = self._instance.endpoint
        try:
            self._stream = stream = await self._open_link(endpoint, self._take, self._flush)
            try:
                self._flush()
                await stream.closed
            finally:
                stream.transport.abort()
            reason = stream.reason
        except OSError as error:  # also TimeoutError, ssl.SSLError
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._stream = None
        self._broken()
        if self._lied:
            self._lied = False
            await self._clock.sleep(REDIAL_AFTER_LIE_S)
        raise ConnectionLost(reason)

    def _broken(self) -> None:
        raise_if_cancelled()  # closed: the listener may have another stream to this instance
        unseen = {request.number for request in self._outbox}
        self._outbox.clear()
        self._sent.clear()
        self._withdrawn.clear()
        self._listener.broken(self._instance, unseen)

    def _take(self, stream: ClientStream, message: bytes | bytearray) -> None:
        self._stream = stream  # its hello may come before it is known to be open
        try:
            response = pb.ExecuteResponse.FromString(bytes(message))
            if response.HasField("hello"):
                self._greet(response.hello)
            results = self._checked(response.results) if response.results else ()
        except ConnectionLost as error:
            stream.abort(str(error))
            return
        except (WrongAnswer, DecodeError) as error:
            self._end_liar(stream, error)
            return
        if response.draining:  # before the results: refused requests must not come back here
            self._listener.draining(self._instance)
        if response.credits:  # before the results: the credits they free may have been withdrawn
            self._listener.credits(self._instance, min(response.credits, MOST_BATCH))
        if results:
            self._listener.results(self._instance, results)

    def _checked(self, results: Sequence[pb.Result]) -> list[Result]:
        """Return results that can be those of what the worker has.

        Raises:
            WrongAnswer: One cannot: none is taken.
        """
        found, now_s = [], self._clock.monotonic()
        for each in results:
            request = self._sent.get(each.id) if each.more else self._sent.pop(each.id, None)
            if request is None:
                raise WrongAnswer(f"a result of work {each.id}, which it does not have")
            if each.more and not self._decoupled:
                raise WrongAnswer("a part of an answer, of a model that answers in one")
            if each.status and each.status not in _ERRORS:
                raise WrongAnswer(f"the status {each.status!r:.64}, which gRPC does not have")
            result = to_result(each)
            if result.response:
                self._check.check(result.response, request)
            if result.cost is not None:
                self._check_cost(result.cost, request, now_s)
            found.append(result)
        return found

    def _end_liar(self, stream: ClientStream, error: Exception) -> None:
        """End the stream to a worker whose answers cannot be: others get what it had."""
        _log.warning(
            "the worker breaks the protocol: its stream ends",
            endpoint=self._instance.endpoint,
            segment=self._instance.segment_id,
            model=self._instance.model,
            error=str(error),
        )
        self._lied = True
        stream.abort(str(error))

    def _greet(self, hello: pb.Hello) -> None:
        """Take a worker's hello.

        Raises:
            ConnectionLost: Another worker now has the address.
            DecodeError: Its metadata cannot be read.
        """
        wanted = (self._instance.segment_id, self._instance.model)
        if (hello.segment_id, hello.model) != wanted:
            raise ConnectionLost(
                f"{self._instance.endpoint} is {hello.segment_id!r} for {hello.model!r},"
                f" expected {wanted[0]!r} for {wanted[1]!r}"
            )
        self._check.learn(hello.metadata)
        self._decoupled = hello.decoupled
        self._worker.connected()
        credits_ = hello.credits or self._instance.credits
        self._listener.hello(
            self._instance,
            Hello(
                min(max(credits_, 1), MOST_BATCH),
                hello.metadata,
                hello.decoupled,
                hello.in_batches,
                min(hello.kv_tokens_per_credit, MOST_KV_TOKENS),
                min(hello.max_batch, MOST_BATCH),
                hello.server[:_MOST_WORD],
                tuple(name[:_MOST_WORD] for name in hello.adapters[:_MOST_ADAPTERS]),
            ),
        )

    def _flush_soon(self) -> None:
        """Send at the end of this turn of the loop, so that all of its requests share a frame."""
        self._flushing = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send waiting requests, as far as there is room."""
        self._flushing = False
        stream = self._stream
        while (self._outbox or self._withdrawn) and stream is not None and stream.ready:
            work = take(self._outbox)
            for request in work:
                self._sent[request.number] = request
            withdrawn: list[int] = []
            if not self._outbox:  # a withdrawal must not overtake its work
                withdrawn, self._withdrawn = self._withdrawn, []
            stream.send(*frame(work, withdrawn, self._clock.monotonic()))


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
            usage=_usage(receipt) if receipt.input_tokens else None,
        )
    if result.status:
        wait_s = result.retry_after_s if 0 < result.retry_after_s <= MOST_RETRY_S else None
        return Result(
            result.id,
            result.status,
            result.message,
            cost=cost,
            retry_after_s=wait_s,
            reason=re.sub(r"\W", "_", result.reason[:_MOST_WORD]),
            field=result.field[:_MOST_WORD],
        )
    return Result(result.id, response=result.response, cost=cost, more=result.more)


def _usage(receipt: pb.Receipt) -> Usage:
    return Usage(
        receipt.input_tokens,
        receipt.output_tokens,
        receipt.first_token_s,
        receipt.token_s,
        receipt.cached_tokens,
    )
