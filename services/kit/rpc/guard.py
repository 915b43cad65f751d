"""One interceptor around every call: it checks the caller, maps errors, counts and traces."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from services.kit.errors import Cancelled, InvalidArgument, ResourceExhausted, ServiceError
from services.kit.h2.admission import Admit, Payer, Refused, Room, local_or_host
from services.kit.net import host_of
from services.kit.rpc.access import Access, caller, valid_until
from services.kit.rpc.call_metrics import CALLS
from services.kit.rpc.health import TOO_MANY_WATCHES
from services.kit.rpc.status import to_wire
from services.kit.telemetry import logs, tracing

_log = logs.get("rpc")
_tracebacks = logs.Tracebacks()
_DELAYED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
_DELAY_S = 3.0
_UNREADABLE = "the request is not a valid protobuf message of this method"

Context = grpc.aio.ServicerContext[Any, Any]


class Tarpit:
    """Delays refusals of callers that have no right to call, or watch too often.

    gRPC's C core begins the next call of a connection as soon as one ends, before anything of it is
    known: of calls that are refused at once, strangers take all of the processor.

    Args:
        most: Refusals that wait at a time; further ones leave at once.
    """

    def __init__(self, most: int) -> None:
        self._free = most

    async def hold(self, error: ServiceError) -> None:
        """Return when a refusal may leave."""
        if self._free <= 0 or (error.status not in _DELAYED and error.reason != TOO_MANY_WATCHES):
            return
        self._free -= 1
        try:
            await asyncio.sleep(_DELAY_S)
        finally:
            self._free += 1


class _Method:
    """A served method.

    Attributes:
        name: "/package.Service/Method".
        traced: Whether a call without a trace starts one.
        access: Callers that may call it; None: all.
        shares: Room for calls that run, where no identities are checked; None: of the transport.
        tarpit: Delays refusals; None: they leave at once.
        calls: Counts of its calls.
    """

    def __init__(
        self,
        name: str,
        *,
        traced: bool = False,
        access: Access | None = None,
        shares: Room | None = None,
        tarpit: Tarpit | None = None,
    ) -> None:
        self.tarpit = tarpit
        self.name = name
        self.traced = traced
        self.access = access
        self.shares = shares
        self.calls = CALLS.of(name)


class _Call:
    """Metrics and trace of one call, as a context manager around its handler."""

    __slots__ = ("_context", "_method", "_payer", "_span", "_started_s")

    def __init__(self, method: _Method, context: Context) -> None:
        self._method = method
        self._context = context
        self._payer: Payer | None = None

    def __enter__(self) -> None:
        if self._method.shares is not None:
            self._take_share(self._method.shares)
        self._started_s = time.monotonic()
        metadata = self._context.invocation_metadata() or ()
        self._span = tracing.enter(self._method.name, metadata, may_begin=self._method.traced)

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self._payer is not None and self._method.shares is not None:
            self._method.shares.give_back(self._payer)
        code = self._context.code()
        status = "OK" if error is None and code is None else self._status(error, code)
        elapsed_s = time.monotonic() - self._started_s
        self._method.calls.end(status, elapsed_s)
        if self._span is not None:
            self._span.end(status)
        if logs.level_now <= logging.DEBUG:  # else the call alone costs as much as counting it
            _log.debug("call", method=self._method.name, status=status, duration_ms=elapsed_s * 1e3)

    def _take_share(self, shares: Room) -> None:
        """Count the call as its host's.

        Raises:
            ResourceExhausted: The host has its share of calls.
        """
        payer = local_or_host(host_of(self._context.peer()))
        if not shares.take(payer):
            self._method.calls.end("RESOURCE_EXHAUSTED", 0.0)
            raise ResourceExhausted("one host has as many calls as it may")
        self._payer = payer

    def _status(self, error: BaseException | None, code: object) -> str:
        if error is None or isinstance(error, grpc.aio.AbortError):
            return code.name if isinstance(code, grpc.StatusCode) else "OK"
        if not isinstance(
            error, Exception
        ):  # the caller resets; a handler may know that it is done
            return "OK" if code is grpc.StatusCode.OK else "CANCELLED"
        meant = _meant(error, self._context)
        return "INTERNAL" if meant is None else meant.status


def _meant(error: Exception, context: Context) -> ServiceError | None:
    """Return the error for the caller; None for a bug."""
    if isinstance(error, grpc.aio.UsageError) and context.cancelled():
        return Cancelled("the caller has cancelled")
    if isinstance(error, DecodeError):
        return InvalidArgument(_UNREADABLE)
    return error if isinstance(error, ServiceError) else None


def _check(method: _Method, request: Any, context: Context) -> float:
    """Return until when the caller may call, or refuse it, or a request that cannot be read."""
    until_s = math.inf
    if method.access is not None:
        method.access.admit(method.name, context)
        until_s = caller().until_s
    if isinstance(request, DecodeError):
        raise request
    return until_s


async def _abort(method: _Method, context: Context, error: Exception) -> None:
    """End the call with the status that `error` stands for; never returns normally."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    meant = _meant(error, context)
    if meant is None:
        _log.error("unhandled error", method=method.name, **_tracebacks.details(error))
        await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        return
    if method.tarpit is not None:
        await method.tarpit.hold(meant)
    await context.abort(*to_wire(meant))


def _guard_single(method: _Method, behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            with _Call(method, context):
                until_s = _check(method, request, context)
                if until_s == math.inf:
                    return await behavior(request, context)
                async with valid_until(until_s):
                    return await behavior(request, context)
        except Exception as error:  # noqa: BLE001 - the border: every error becomes a status here
            await _abort(method, context, error)

    return guarded


def _guard_stream(method: _Method, behavior: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(behavior):  # it sends with context.write
        return _guard_single(method, behavior)

    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            with _Call(method, context):
                until_s = _check(method, request, context)
                responses = behavior(request, context)
                if until_s < math.inf:
                    responses = _until(until_s, responses)
                async for response in responses:
                    yield response
        except Exception as error:  # noqa: BLE001 - the border: every error becomes a status here
            await _abort(method, context, error)

    return guarded


async def _until(until_s: float, responses: AsyncGenerator[Any, None]) -> AsyncIterator[Any]:
    """Yield responses while the identity of their caller is valid.

    Raises:
        Unauthenticated: It has expired.
    """
    async with aclosing(responses):
        while True:
            async with valid_until(until_s):
                try:
                    response = await anext(responses)
                except StopAsyncIteration:
                    return
            yield response


def _checked(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Pass the error of an unreadable request to its handler; grpc alone answers UNKNOWN."""
    if deserialize is None:
        return None

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return error

    return parse


def _unless_encoded(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Send responses that are bytes already as they are: many callers may get the same ones."""
    if serialize is None:
        return None
    return lambda response: response if isinstance(response, bytes) else serialize(response)


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not generic at run time


def guard(
    name: str,
    handler: Handler,
    access: Access | None = None,
    shares: Room | None = None,
    tarpit: Tarpit | None = None,
) -> Handler:
    """Return `handler` with callers checked, errors mapped, calls timed and traces bound."""
    # Streams may last for days, and health checks are frequent: neither starts a trace.
    traced = bool(handler.unary_unary) and not name.startswith("/grpc.")
    method = _Method(name, traced=traced, access=access, shares=shares, tarpit=tarpit)
    for kind in ("unary_unary", "stream_unary", "unary_stream", "stream_stream"):
        behavior = getattr(handler, kind)
        if behavior:
            wrap = _guard_stream if kind.endswith("stream") else _guard_single
            read = handler.request_deserializer
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            return make(  # type: ignore[no-any-return]  # of the four kinds
                wrap(method, behavior),
                _checked(read) if kind.startswith("unary") else read,
                _unless_encoded(handler.response_serializer),
            )
    raise TypeError(f"{name} has no behaviour")


def admission(access: Access) -> Admit:
    """Return what refuses calls, and counts the refusals, before anything of them is taken."""

    def admit(method: str, context: Any) -> Payer:
        try:
            return access.payer(method, context)
        except ServiceError as error:
            CALLS.of(method).end(error.status, 0.0)
            code, details, trailers = to_wire(error)
            raise Refused(code.value[0], details, trailers) from error

    return admit


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each method's handler once and caches it."""

    def __init__(self, access: Access | None = None, calls: int = 0) -> None:
        """Make the interceptor of one server.

        Args:
            access: Callers that may call; None: all, and no host takes what others need.
            calls: Calls that may run at a time; 0: no limit.
        """
        self._access = access
        self._shares = Room(calls) if access is None and calls else None
        self._tarpit = Tarpit(calls // 2)
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
        self._guarded[method] = guard(method, handler, self._access, self._shares, self._tarpit)
        return self._guarded[method]
