"""One interceptor around every call: errors become status codes, calls are timed and traced."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.kit import logs, tracing
from services.kit.errors import Cancelled, InvalidArgument, ServiceError
from services.kit.metrics import RPC_SECONDS, RPC_TOTAL
from services.kit.rpc.status import to_wire

_log = logs.get("rpc")

Context = grpc.aio.ServicerContext[Any, Any]


class _Call:
    """Book-keeping of one call, as a context manager around its handler."""

    def __init__(self, method: str, context: Context) -> None:
        self._method = method
        self._context = context
        self._started_s = time.perf_counter()

    def __enter__(self) -> None:
        metadata = self._context.invocation_metadata() or ()
        header = next((str(value) for key, value in metadata if key == "traceparent"), "")
        tracing.traceparent.set(tracing.accept(header) if header else "")

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        code = self._context.code()
        status = code.name if isinstance(code, grpc.StatusCode) else "OK"
        if isinstance(error, ServiceError):
            status = error.status
        elif error is not None and not isinstance(error, grpc.aio.AbortError):
            status = "CANCELLED" if not isinstance(error, Exception) else "INTERNAL"
        elapsed_s = time.perf_counter() - self._started_s
        RPC_SECONDS.labels(self._method).observe(elapsed_s)
        RPC_TOTAL.labels(self._method, status).inc()
        _log.debug("call", method=self._method, status=status, duration_ms=elapsed_s * 1e3)


async def _abort(method: str, context: Context, error: Exception) -> None:
    """End the call with the status that `error` stands for; never returns normally."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, grpc.aio.UsageError) and context.cancelled():
        error = Cancelled("the caller has gone")
    if not isinstance(error, ServiceError):
        _log.error("unhandled error", method=method, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error")
    else:
        code, message, trailing = to_wire(error)
        await context.abort(code, message, trailing)


def _guard_single(method: str, behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            with _Call(method, context):
                return await behavior(request, context)
        except Exception as error:  # noqa: BLE001 - the border: every error becomes a status here
            await _abort(method, context, error)

    return guarded


def _guard_stream(method: str, behavior: Callable[..., Any]) -> Callable[..., Any]:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            with _Call(method, context):
                async for response in behavior(request, context):
                    yield response
        except Exception as error:  # noqa: BLE001 - the border: every error becomes a status here
            await _abort(method, context, error)

    return guarded


def _checked(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Answer bytes that are not protobuf with INVALID_ARGUMENT; grpc alone says UNKNOWN."""
    if deserialize is None:
        return None

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _UNREADABLE

    return parse


_UNREADABLE = object()


def _refuse_unreadable(behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def checked(request: Any, context: Context) -> Any:
        if request is _UNREADABLE:
            raise InvalidArgument("the request is not a valid protobuf message of this method")
        return await behavior(request, context)

    return checked


Handler = grpc.RpcMethodHandler[Any, Any]


def guard(method: str, handler: Handler) -> Handler:
    """Return `handler` with every error mapped, every call timed, every trace bound."""
    read, write = handler.request_deserializer, handler.response_serializer
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(
            _guard_single(method, _refuse_unreadable(handler.unary_unary)),
            _checked(read),
            write,
        )
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(
            _guard_single(method, handler.stream_unary),
            read,
            write,
        )
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(
            _guard_stream(method, handler.unary_stream), read, write
        )
    if handler.stream_stream:
        return grpc.stream_stream_rpc_method_handler(
            _guard_stream(method, handler.stream_stream), read, write
        )
    raise TypeError(f"{method} has no behaviour")


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each method's handler once and remembers it."""

    def __init__(self) -> None:
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the guarded handler of the called method."""
        method = handler_call_details.method
        known = self._guarded.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None:  # an unknown method: grpc answers UNIMPLEMENTED
            return handler
        self._guarded[method] = guard(method, handler)
        return self._guarded[method]
