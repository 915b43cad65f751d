"""The handling side of a client's connection: calls whose message is there, and their handlers."""

import asyncio
import inspect
import math
from contextlib import suppress
from typing import Any, Final

import grpc

from services.kit.h2 import frames
from services.kit.h2.answering_side import AnsweringSide
from services.kit.h2.call import Call
from services.kit.h2.frames import ConnectionFault
from services.kit.h2.messages import Compressed, MessageError
from services.kit.h2.server_state import ServerState
from services.kit.telemetry import logs

TOO_MANY: Final = "Concurrent RPC limit exceeded!"
FIRST_REQUEST_S: Final = 1.0
"""Time that a refused call waits for the first request of its stream, s."""

_FIRST_PIECE_BYTES: Final = 64 * 1024
"""Size of what is decompressed on the event loop; the rest of a message is in a thread."""
_PIECE_BYTES: Final = 2**20
_CANCELLED, _UNKNOWN, _DEADLINE, _EXHAUSTED, _INTERNAL = 1, 2, 4, 8, 13

_log = logs.get("h2")
_tracebacks = logs.Tracebacks()


class HandlingSide(AnsweringSide):
    """Runs the handlers of a client's connection."""

    def __init__(self, server: ServerState) -> None:
        super().__init__(server)
        self._opening = 0  # calls whose message is not there yet

    def _reserve(self, call: Call, size: int) -> None:
        """Take room for bytes of a message.

        Raises:
            MessageError: There is none.
        """
        if not self._server.received.take(call.payer, size):
            raise MessageError("the server receives as much as it may at a time", too_large=True)
        call.reserved += size

    async def _go_on(self, call: Call, message: Compressed) -> None:
        """Decompress the rest of a message in a thread, a piece at a time."""
        while not message.done and not call.over:
            before = len(message.found)
            await self.loop.run_in_executor(None, message.go_on, _PIECE_BYTES)
            if not call.over:
                self._reserve(call, len(message.found) - before)

    async def decompressed(self, call: Call, message: Compressed) -> bytearray:
        """Return a message decompressed, within the room of its caller, or refuse its call.

        Raises:
            asyncio.CancelledError: The call is over.
        """
        try:
            while not message.done and not call.over:
                if message.found:
                    async with self._server.decompressing:
                        await self._go_on(call, message)
                else:
                    message.go_on(_FIRST_PIECE_BYTES)
                    self._reserve(call, len(message.found))
        except MessageError as error:
            message.found = bytearray()  # the error may keep the message for a while
            try:
                self.message_refused(call, error)
            except ConnectionFault as fault:
                self.fail(fault)
        if call.over:
            raise asyncio.CancelledError
        return message.found

    def _begin(self, call: Call, message: bytes | bytearray | Compressed) -> None:
        if call.reserved:
            self.release(call, call.reserved)
        call.reader = call.message = None
        call.opening, call.due_s = False, math.inf
        self._opening -= call.head.size
        self._server.opening -= call.head.size
        if not self._server.calls.take(call.payer):
            self.end(call, _EXHAUSTED, TOO_MANY)
            return
        call.counted = True
        if call.head.timeout_s is not None:
            self._start_timer(call)
        run = self._answer_stream if call.head.handler.response_streaming else self._answer_one
        call.task = self.loop.create_task(run(call, message))

    def _start_timer(self, call: Call) -> None:
        left_s = call.time_remaining()
        if left_s is not None:
            call.timer = self.loop.call_later(left_s, self._too_late, call)

    def _too_late(self, call: Call) -> None:
        if not call.over:
            self._stop(call)
            if call.outbox:  # what waits for room would come too late, too
                call.outbox.clear()
            self.end(call, _DEADLINE, "Deadline Exceeded")

    async def _answer_one(self, call: Call, message: bytes | bytearray | Compressed) -> None:
        try:
            handler = call.head.handler
            if isinstance(message, Compressed):
                message = await self.decompressed(call, message)
            deserialize = handler.request_deserializer
            request = message if deserialize is None else deserialize(message)
            answer = await handler.unary_unary(request, call)
            if not call.over:
                serialize = handler.response_serializer
                self._answer(call, answer if serialize is None else serialize(answer))
        except BaseException as error:
            self._failed(call, error)
            if not isinstance(error, Exception):
                raise

    async def _answer_stream(self, call: Call, request: Any) -> None:
        try:
            handler = call.head.handler
            if isinstance(request, Compressed):
                request = await self.decompressed(call, request)
            if request is not call:
                request = call.read(request)
            if handler.stream_unary is not None:
                answer = await handler.stream_unary(request, call)
                serialize = handler.response_serializer
                self._answer(call, answer if serialize is None else serialize(answer))
                return
            behaviour = handler.stream_stream or handler.unary_stream
            if inspect.iscoroutinefunction(behaviour):  # it sends with context.write
                await behaviour(request, call)
            else:
                async for response in behaviour(request, call):
                    await call.write(response)
            self.end(call, *call.status())
        except Exception as error:  # noqa: BLE001 - the border: every error becomes a status here
            await self._first_request(call)
            self._failed(call, error)
        except BaseException as error:
            self._failed(call, error)
            raise

    async def _first_request(self, call: Call) -> None:
        """Wait a little for the first request of a stream, before its call is refused.

        A client of grpc.aio that is just sending it would say INTERNAL, not why it was refused.
        """
        if call.inbox is None or call.reader is not None or call.ended or call.over:
            return
        call.waiter = self.loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_REQUEST_S):
                await call.waiter

    def _failed(self, call: Call, error: BaseException) -> None:
        if call.over:
            return
        self.regain_patience()
        if isinstance(error, grpc.aio.AbortError):
            self.end(call, *call.status())
        elif isinstance(error, asyncio.CancelledError):
            self.end(call, _CANCELLED, "")
        else:
            if isinstance(error, Exception):
                _log.error("unhandled error", method=call.head.path, **_tracebacks.details(error))
            self.end(call, _UNKNOWN, "internal error")

    def message_refused(self, stream: Call, error: MessageError) -> None:
        """Answer what is wrong with the request, and read no more of it."""
        if stream.refusal is not None:
            self.end(stream, *stream.refusal)
            return
        self.lose_patience("a message that is not taken")
        self._stop(stream)
        self.end(stream, _EXHAUSTED if error.too_large else _INTERNAL, str(error))
        if stream.inbox is None:  # else `end` has sent it
            self.write(frames.reset(stream.number, frames.NO_ERROR))

    def release(self, call: Call, count: int) -> None:
        """Give back room that a request in pieces has taken."""
        call.reserved -= count
        self._server.received.give_back(call.payer, count)
