"""A network between simulated machines, in place of gRPC's C core and of streams to workers.

Stands for `grpc.aio.insecure_channel` and `grpc.aio.server` at their interfaces. Messages of one
direction of a call arrive in order; where one machine does not reach another they wait, as in TCP.
A call whose keepalive gets no answer ends with UNAVAILABLE at each end that sends one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, Self, TextIO

import grpc
from grpc.aio import EOF, AioRpcError, Metadata

from cinquefoil.planner.v1.planner_pb2 import JoinResponse
from tests.simulation.machine import Process, current, in_process, now_s, patch, rng

_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_CONNECT_S: Final = 2.0
_LOSS: Final = 0.001
_RESENT_S: Final = 0.2
_JOIN: Final = "/cinquefoil.planner.v1.PlannerService/Join"


class Network:
    """Reachability, delays, and the record of all that was sent.

    Attributes:
        servers: By address.
        calls: Calls that have not ended, by number.
        cut: Ordered pairs of machines of which the first does not reach the second.
        lost: Machines that no packet reaches or leaves.
        slow: Factors on delays, by machine.
        messages: Messages sent so far.
        statuses: Ends of calls, by method and status.
        orders: Messages of planners to the agent of each machine.
        log: Where every event is written, too; None: nowhere.
    """

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.calls: dict[int, Call] = {}
        self.cut: dict[tuple[str, str], None] = {}
        self.lost: dict[str, None] = {}
        self.slow: dict[str, float] = {}
        self.messages = self.begun = 0
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.orders: dict[str, list[bytes]] = {}
        self.log: TextIO | None = None
        self._record = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Digest of all messages and their times."""
        return self._record.hexdigest()[:16]

    def note(self, *event: Any) -> None:
        """Add an event to the record."""
        line = repr((round(now_s(), 9), *event))
        self._record.update(line.encode())
        if self.log is not None:
            self.log.write(f"{line}\n")

    def reaches(self, source: str, target: str) -> bool:
        """Return whether packets of one machine arrive at another."""
        if source == target:
            return True
        return not (source in self.lost or target in self.lost or (source, target) in self.cut)

    def delay_s(self, source: str, target: str) -> float:
        """Draw the time that a message takes; some are lost, and sent again."""
        if source == target:
            return rng.uniform(0.00005, 0.0002)
        delay_s = rng.uniform(0.0002, 0.002) + (_RESENT_S if rng.random() < _LOSS else 0.0)
        return delay_s * max(self.slow.get(source, 1.0), self.slow.get(target, 1.0))

    def lose(self, machine: str) -> None:
        """Take a machine off the network."""
        self.lost[machine] = None
        self._look()

    def part(self, source: str, target: str, *, both: bool = True) -> None:
        """Cut one machine off from another; not `both`: the other still reaches the first."""
        self.cut[source, target] = None
        if both:
            self.cut[target, source] = None
        self._look()

    def join(self, source: str, target: str) -> None:
        """Repair the way between two machines."""
        self.cut.pop((source, target), None)
        self.cut.pop((target, source), None)
        self.flush()

    def find(self, machine: str) -> None:
        """Bring a lost machine back."""
        self.lost.pop(machine, None)
        self.flush()

    def flush(self) -> None:
        """Send what waited for a way."""
        for call in tuple(self.calls.values()):
            call.flush()

    def replay(self, machine: str) -> None:
        """Deliver to an agent again the first order that it got from a planner."""
        joined = (each for each in self.calls.values() if each.path == _JOIN)
        call = next((each for each in joined if each.client.machine == machine), None)
        orders = self.orders.get(machine, ())
        first = next((each for each in orders if JoinResponse.FromString(each).step.term), None)
        if call is not None and first is not None:
            call.send(False, call.deliver, first)

    def died(self, process: Process) -> None:
        """Reset the connections of a process, where its machine still answers."""
        for call in tuple(self.calls.values()):
            call.peer_died(process)

    def _look(self) -> None:
        for call in tuple(self.calls.values()):
            call.look()


net = Network()


class _Inbox:
    """Messages that have arrived at one end of a call."""

    def __init__(self) -> None:
        self.messages: deque[Any] = deque()
        self.news = asyncio.Event()

    def put(self, message: Any) -> None:
        self.messages.append(message)
        self.news.set()

    async def take(self, ended: Callable[[], bool]) -> Any:
        while not self.messages:
            if ended():
                return EOF
            self.news.clear()
            await self.news.wait()
        return EOF if self.messages[0] is EOF else self.messages.popleft()


class Call:
    """A call: its client's methods are those of grpc.aio.

    Attributes:
        number, path: Number in the history, and method.
        client: The process that made it.
        server: What serves it; None: not connected yet.
        handling: The task that serves it.
        requests: What has arrived at the server.
        metadata: Headers.
        deadline_s: When it ends at the latest; None: there is no limit.
        status: How it ended, at the client; None: it has not.
    """

    def __init__(self, channel: Channel, path: str, reads: Any, writes: Any, more: Any) -> None:
        net.begun += 1
        self.number, self.path, self.client = net.begun, path, current.get()
        self.server: Server | None = None
        self.handling: asyncio.Task[None] | None = None
        self.requests, self._responses = _Inbox(), _Inbox()
        self.metadata = tuple(more.get("metadata") or ())
        self._channel, self._reads, self._writes = channel, reads, writes
        self._waits_for_ready = more.get("wait_for_ready")
        self._here, self._there = self.client.machine, channel.address.rpartition(":")[0]
        self._held: dict[bool, deque[Any]] = {True: deque(), False: deque()}
        self._last_s = {True: 0.0, False: 0.0}
        self._silent_since_s: float | None = None
        self.status: tuple[grpc.StatusCode, str, Metadata] | None = None
        net.calls[self.number] = self
        timeout_s = more.get("timeout")
        self.deadline_s = None if timeout_s is None else now_s() + timeout_s
        if timeout_s is not None:
            asyncio.get_running_loop().call_later(timeout_s, self.finish, 4, "deadline")
        self._connect()

    # ---- the wire

    @property
    def _way(self) -> bool:
        """True if packets go both ways."""
        return net.reaches(self._here, self._there) and net.reaches(self._there, self._here)

    def _connect(self) -> None:
        if self.status is not None:
            return
        server, loop = net.servers.get(self._channel.address), asyncio.get_running_loop()
        if self._way and server is not None and server.process.alive:
            self.server = server
            self.send(True, server.begin, self)
        elif self._waits_for_ready:
            loop.call_later(0.1, self._connect)
        else:
            after_s = net.delay_s(self._here, self._there) if self._way else _CONNECT_S
            loop.call_later(after_s, self.finish, 14, "connection refused")

    def send(self, up: bool, work: Callable[..., Any], *args: Any) -> None:
        """Schedule work at the other end, after what was sent before."""
        source, target = (self._here, self._there) if up else (self._there, self._here)
        if self._held[up] or not net.reaches(source, target):
            self._held[up].append((work, args))
            self.look()
            return
        at_s = self._last_s[up] = max(self._last_s[up], now_s() + net.delay_s(source, target))
        net.messages += 1
        sizes = [len(each) for each in args if isinstance(each, bytes)]
        net.note(self.number, self.path, up, *sizes)
        if up:
            process = None if self.server is None else self.server.process
            in_process(process, at_s - now_s(), work, *args)
        else:
            in_process(self.client, at_s - now_s(), work, *args)

    def flush(self) -> None:
        """Send what waited, where there is a way again."""
        if self._way:
            self._silent_since_s = None
            if not (self.client.alive and (self.server is None or self.server.process.alive)):
                self._break("reset")
        for up, (source, target) in (
            (True, (self._here, self._there)),
            (False, (self._there, self._here)),
        ):
            if net.reaches(source, target):
                held, self._held[up] = self._held[up], deque()
                for work, args in held:
                    self.send(up, work, *args)

    def look(self) -> None:
        """Begin to count the time of keepalives where packets do not go both ways."""
        if self.status is None and not self._way and self._silent_since_s is None:
            self._silent_since_s = now_s()
            client_s = self._channel.dead_after_s if self.server else _CONNECT_S
            in_process(None, client_s, self._give_up, self._silent_since_s, True)
            if self.server is not None:
                after_s = self.server.dead_after_s
                in_process(None, after_s, self._give_up, self._silent_since_s, False)

    def peer_died(self, process: Process) -> None:
        """Reset this call, if it is one of the process."""
        if process is self.client or (self.server is not None and process is self.server.process):
            if self._way:
                in_process(None, net.delay_s("a", "b"), self._break, "reset")
            else:
                self.look()

    def _give_up(self, since_s: float, client: bool) -> None:
        if self._silent_since_s == since_s:
            self._break("keepalive", client=client, server=not client)

    def _break(self, why: str, *, client: bool = True, server: bool = True) -> None:
        for held in self._held.values():
            held.clear()
        if server and self.server is not None and self.handling is not None:
            in_process(self.server.process, 0, self.handling.cancel)
        if client:
            in_process(self.client if self.client.alive else None, 0, self.finish, 14, why)

    # ---- the client's end

    def finish(self, code: int, details: str = "", trailers: Sequence[Any] = ()) -> None:
        """End the call at its client."""
        if self.status is not None:
            return
        net.note(self.number, "end", code)
        net.statuses[self.path.rpartition("/")[2], code] += 1
        self.status = (_CODES[code], details, Metadata(*trailers))
        net.calls.pop(self.number, None)
        self._responses.news.set()
        if self.handling is not None and code in (1, 4):
            self.send(True, self.handling.cancel)

    def deliver(self, message: Any) -> None:
        """Take a response that has arrived."""
        self._responses.put(message)

    async def read(self) -> Any:
        """Return the next response, or EOF."""
        try:
            data = await self._responses.take(lambda: self.status is not None)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is not EOF:
            return data if self._reads is None else self._reads(data)
        assert self.status is not None
        if self.status[0] is grpc.StatusCode.CANCELLED:
            raise asyncio.CancelledError
        if self.status[0] is not grpc.StatusCode.OK:
            code, details, trailers = self.status
            raise AioRpcError(code, Metadata(), trailers, details=details)
        return EOF

    async def write(self, message: Any) -> None:
        """Send a request."""
        if self.status is not None:
            raise asyncio.InvalidStateError("the stream has ended")
        data = message if self._writes is None else self._writes(message)
        self.send(True, self.requests.put, data)

    async def done_writing(self) -> None:
        """Send no more requests."""
        self.send(True, self.requests.put, EOF)

    def cancel(self) -> None:
        """End it."""
        self.finish(1, "cancelled")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if (found := await self.read()) is EOF:
            raise StopAsyncIteration
        return found

    def __await__(self) -> Any:
        return self.read().__await__()


class Context:
    """The server's end of a call, and its requests: methods of grpc.aio.ServicerContext."""

    def __init__(self, call: Call, handler: Any) -> None:
        self._call, self._handler = call, handler
        self.aborted: tuple[grpc.StatusCode, str] | None = None
        self.trailers: Sequence[Any] = ()

    def invocation_metadata(self) -> Sequence[Any]:
        return self._call.metadata

    def peer(self) -> str:
        return f"ipv4:{self._call.client.machine}:{self._call.client.pid}"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def cancelled(self) -> bool:
        return self._call.status is not None

    def code(self) -> Any:
        return self.aborted and self.aborted[0]

    def set_trailing_metadata(self, trailers: Sequence[Any]) -> None:
        self.trailers = trailers

    def time_remaining(self) -> float | None:
        deadline_s = self._call.deadline_s
        return None if deadline_s is None else max(deadline_s - now_s(), 0.0)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self.aborted, self.trailers = (code, details), trailing_metadata or self.trailers
        raise grpc.aio.AbortError(details)

    async def write(self, message: Any) -> None:
        if self.cancelled():
            raise grpc.aio.UsageError("the call has ended")
        writes = self._handler.response_serializer
        data = message if writes is None else writes(message)
        if self._call.path == _JOIN:
            net.orders.setdefault(self._call.client.machine, []).append(data)
        self._call.send(False, self._call.deliver, data)
        await asyncio.sleep(0)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        data = await self._call.requests.take(lambda: False)
        if data is EOF:
            raise StopAsyncIteration
        reads = self._handler.request_deserializer
        return data if reads is None else reads(data)


class Server:
    """Stands for grpc.aio.Server, in the process that makes it."""

    def __init__(self, interceptors: Sequence[Any] = (), options: Any = (), **_: Any) -> None:
        self.process = current.get()
        self.dead_after_s = _keepalive_s(options)
        self._interceptors = interceptors
        self._generic: list[Any] = []
        self._addresses: list[str] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, *_: Any) -> None:
        """Do nothing: the generic ones are the same."""

    def add_insecure_port(self, address: str) -> int:
        taken = net.servers.get(address)
        if taken is not None and taken.process.alive:
            raise RuntimeError("the address is taken")
        self._addresses.append(address)
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        for address in self._addresses:
            net.servers[address] = self

    async def stop(self, grace_s: float | None) -> None:
        for address in self._addresses:
            net.servers.pop(address, None)
        for patience_s in (grace_s, None):
            if self._tasks:
                await asyncio.wait(tuple(self._tasks), timeout=patience_s)
            for task in tuple(self._tasks):
                task.cancel()

    def begin(self, call: Call) -> None:
        """Serve a call that has arrived."""
        task = call.handling = self.process.spawn(self._serve(call))
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    async def _serve(self, call: Call) -> None:
        details: Any = SimpleNamespace(method=call.path, invocation_metadata=call.metadata)

        async def find(_: Any) -> Any:
            found = (each.service(details) for each in self._generic)
            return next((each for each in found if each is not None), None)

        if self._interceptors:
            handler = await self._interceptors[0].intercept_service(find, details)
        else:
            handler = await find(details)
        if handler is None:
            call.send(False, call.finish, 12, "unimplemented")
            return
        context = Context(call, handler)
        code, words = await _answered(handler, context)
        call.send(False, call.finish, code, words, tuple(context.trailers or ()))


async def _answered(handler: Any, context: Context) -> tuple[int, str]:
    """Run a handler to its end; return the status."""
    kind = next(each for each in _KINDS if getattr(handler, each))
    try:
        request = context if kind.startswith("stream") else await anext(context)
        answer = getattr(handler, kind)(request, context)
        if hasattr(answer, "__aiter__"):
            async for response in answer:
                await context.write(response)
        elif (response := await answer) is not None:
            await context.write(response)
    except grpc.aio.AbortError:
        assert context.aborted is not None
        code, words = context.aborted
        return code.value[0], words
    except asyncio.CancelledError:
        return (1 if context.cancelled() else 14), ""
    except (grpc.aio.UsageError, grpc.aio.BaseError):
        return 1, ""
    except Exception as error:  # noqa: BLE001 - as gRPC answers it
        return 2, repr(error)
    return 0, ""


class Channel:
    """Stands for grpc.aio.Channel, in the process that makes it."""

    def __init__(self, address: str, options: Any = (), **_: Any) -> None:
        self.address, self.dead_after_s = address, _keepalive_s(options)
        self.calls: dict[int, Call] = {}

    def __getattr__(self, kind: str) -> Any:
        if kind not in _KINDS:
            raise AttributeError(kind)

        def method(
            path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
        ) -> Any:
            def begin(request: Any = None, **more: Any) -> Call:
                call = Call(self, path, response_deserializer, request_serializer, more)
                if kind.startswith("unary"):
                    data = request if request_serializer is None else request_serializer(request)
                    call.send(True, call.requests.put, data)
                return call

            return begin

        return method

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, _grace: float | None = None) -> None:
        for call in tuple(net.calls.values()):
            if call._channel is self:
                call.cancel()


def _keepalive_s(options: Any) -> float:
    return 2e-3 * float(dict(options or ()).get("grpc.keepalive_time_ms", 10_000))


def install() -> None:
    """Put this network in the place of gRPC's."""
    patch(grpc.aio, insecure_channel=Channel, server=Server)
