"""WorkerService: wire <-> executor; and spans for the callers' traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.gpuagent.worker.intake import Intake
from services.gpuagent.worker.session import Answer, Session
from services.gpuagent.worker.work_messages import Frame, read_frame
from services.kit.telemetry import tracing

if TYPE_CHECKING:
    from services.kit.telemetry.otel_spans import OtelSpan

Requests = AsyncIterator[Frame]


Execute = Callable[[Requests, grpc.aio.ServicerContext[Any, Any]], Awaitable[None]]
"""Writes a hello, then answers to work."""


def add_worker(execute: Execute, server: grpc.aio.Server) -> None:
    """Register WorkerService; large requests are read without copying them."""
    handler: grpc.RpcMethodHandler[Frame, pb.ExecuteResponse]
    handler = grpc.stream_stream_rpc_method_handler(
        execute,
        request_deserializer=read_frame,
        response_serializer=pb.ExecuteResponse.SerializeToString,
    )
    service = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Execute": handler}),)
    )


class WorkerServicer:
    """Serves one executor.

    Args:
        hello: What this process serves; the credits are each stream's own.
        executor: Does the work.
    """

    def __init__(self, hello: pb.Hello, executor: Intake[Any, Any, Any]) -> None:
        self._hello = hello
        self._executor = executor

    async def Execute(
        self,
        request_iterator: Requests,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Write a hello, then answers until the router ends the stream or this worker drains."""
        session, spans = self._executor.open(), WorkSpans() if tracing.recording() else None
        try:
            hello = pb.Hello(credits=session.first_credits())
            hello.MergeFrom(self._hello)
            await context.write(pb.ExecuteResponse(hello=hello))
            async with _beside(self._take_in(request_iterator, session, spans)):
                while (update := await session.next_update()) is not None:
                    if spans is not None:
                        spans.end(update.answers)
                    response = pb.ExecuteResponse(
                        results=map(_result, update.answers),
                        draining=update.draining,
                        credits=update.credits,
                    )
                    await context.write(response)
        finally:
            if spans is not None:
                spans.close()
            self._executor.close(session)

    async def _take_in(self, incoming: Requests, session: Session, spans: WorkSpans | None) -> None:
        try:
            async for frame in incoming:
                now_s = self._executor.clock.monotonic()
                for work, body in frame.work:
                    if spans is not None:
                        spans.begin(work)
                    self._executor.submit(session, work, body, now_s)
                if frame.cancelled_ids:
                    self._executor.cancel(session, frame.cancelled_ids)
                await session.room()  # unread messages wait at their router, by flow control
        finally:
            session.end_input()


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` beside the block; leaving ends it, and raises its error where it had one.

    Unlike a TaskGroup it raises the error itself, which the guard around the call knows.
    """
    task = asyncio.create_task(work, name="worker.take-in")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _result(answer: Answer) -> pb.Result:
    result = pb.Result(id=answer.id, response=answer.response, more=answer.more)
    if answer.error is not None:
        result.status, result.message = answer.error.status, answer.error.message
        result.retry_after_s = answer.error.retry_after_s or 0.0
        result.field = answer.error.field
        if answer.error.reason != answer.error.status:
            result.reason = answer.error.reason
    if answer.cost is not None:
        cost = answer.cost
        result.receipt.energy_j = cost.energy_j
        result.receipt.idle_energy_j = cost.idle_energy_j
        result.receipt.energy_method = cost.method
        result.receipt.queue_s = cost.queue_s
        result.receipt.compute_s = cost.compute_s
        result.receipt.batch_size = cost.batch_size
        result.receipt.items = cost.items
        if cost.usage is not None:
            result.receipt.input_tokens = cost.usage.input_tokens
            result.receipt.output_tokens = cost.usage.output_tokens
            result.receipt.first_token_s = cost.usage.first_token_s
            result.receipt.token_s = cost.usage.token_s
            result.receipt.cached_tokens = cost.usage.cached_tokens
    return result


class WorkSpans:
    """The spans of one stream's work that has a trace."""

    def __init__(self) -> None:
        self._open: dict[int, OtelSpan] = {}

    def begin(self, work: pb.Work) -> None:
        """Begin the span of a piece of work that has come."""
        span = tracing.begin_for("worker.execute", work.traceparent, work.tracestate)
        if span is not None:
            self._open[work.id] = span

    def end(self, answers: Iterable[Answer]) -> None:
        """End the spans of work that has its last answer."""
        for answer in answers:
            span = None if answer.more else self._open.pop(answer.id, None)
            if span is not None:
                _end(span, answer)

    def close(self) -> None:
        """End the spans of unanswered work: the stream is gone."""
        for span in self._open.values():
            span.end("CANCELLED")
        self._open.clear()


def _end(span: OtelSpan, answer: Answer) -> None:
    cost = answer.cost
    if cost is not None:
        span.part("queue", 0.0, cost.queue_s)
        span.part("compute", cost.queue_s, cost.compute_s)
        span.set(
            {
                "cinquefoil.energy_j": cost.energy_j,
                "cinquefoil.energy_method": cost.method,
                "cinquefoil.batch_size": cost.batch_size,
            }
        )
    span.end("OK" if answer.error is None else answer.error.status)
