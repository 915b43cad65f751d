"""Workers of the simulation: coroutines that serve in virtual time, in place of processes.

Each writes its ledger slot as a worker does, runs batches for as long as their profile says,
drains, outlives its agent, and ends itself where no agent shows life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
from grpc.aio import EOF

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from services.gpuagent.core import worker_spec
from services.gpuagent.core.worker_slot import Slot
from services.gpuagent.shared_memory import records, shared_counters
from services.gpuagent.supervision import processes, worker_allocation, worker_supervisor
from services.kit.profiles.core.profile import BatchCost
from services.router import app as router_app
from tests.simulation.machine import Process, current, now_s, patch, rng
from tests.simulation.network import Call, Channel, Server, net

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name
_EXECUTE: Final = f"/{_SERVICE}/Execute"
_ports = count(20_000)

workers: list[Worker] = []
"""Every worker of the history, in order of its start."""


class Worker:
    """A worker process; the methods are those of `processes.WorkerProcess`."""

    def __init__(self, path: Path) -> None:
        self.path, self._draining, self.exit_status = path, False, None
        self.lies = False
        self.process = Process(f"worker {path.stem}", current.get().machine)
        self._gone = asyncio.Event()
        self._working = asyncio.Lock()
        self.process.on_death += [self._gone.set, lambda: net.died(self.process)]
        workers.append(self)
        self.process.spawn(self._run()).add_done_callback(lambda _: self.process.kill())

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.alive

    def memory_bytes(self, *, family: bool = False) -> int:  # noqa: ARG002 - the product's
        return 2**20

    def end_lies(self) -> None:
        """Answer the truth again."""
        self.lies = False

    def sweep(self) -> None:
        """Do nothing: it starts no process."""

    async def ended(self) -> None:
        await self._gone.wait()

    async def end(self, grace_s: float) -> None:
        self._draining = True
        await asyncio.sleep(min(grace_s, 0.1))
        self.process.kill()

    async def _run(self) -> None:
        await asyncio.sleep(rng.uniform(0.2, 1.0))  # it loads its model
        self.spec = spec = worker_spec.load(self.path)
        self._counters = counters = shared_counters.SharedCounters(spec.ledger, now_s)
        self._slot = Slot(pid=self.pid, slice_uuid=spec.slice_uuid, segment_id=spec.segment_id)
        known = counters.slot(spec.slot)
        self._write(active_j=known.active_j, busy_s=known.busy_s, requests=known.requests)
        server = Server()
        method = grpc.stream_stream_rpc_method_handler(
            self._execute, pb.ExecuteRequest.FromString, pb.ExecuteResponse.SerializeToString
        )
        handlers = grpc.method_handlers_generic_handler(_SERVICE, {"Execute": method})
        server.add_generic_rpc_handlers([handlers])
        server.add_insecure_port(spec.listen)
        await server.start()
        while now_s() - counters.heartbeat_s < spec.orphan_timeout_s:  # noqa: ASYNC110 - a ledger
            await asyncio.sleep(2.0)

    def _write(self, **changes: Any) -> None:
        self._slot = replace(self._slot, **changes)
        self._counters.write(self.spec.slot, self._slot)

    async def _execute(self, requests: Any, _context: Any) -> Any:
        spec = self.spec
        hello = pb.Hello(
            segment_id=spec.segment_id,
            model=spec.model,
            variant=spec.variant,
            credits=spec.slots,
            in_batches=True,
        )
        yield pb.ExecuteResponse(hello=hello)
        async for request in requests:
            if self._draining:
                refused = [pb.Result(id=each.id, status="UNAVAILABLE") for each in request.work]
                yield pb.ExecuteResponse(draining=True, results=refused)
            elif request.work:
                async with self._working:
                    yield pb.ExecuteResponse(results=await self._batch(request.work))

    async def _batch(self, work: Any) -> list[pb.Result]:
        spec, began_s = self.spec, now_s()
        cost = BatchCost(0.01, 1.0)
        if spec.costs is not None:
            cost = spec.costs.at(len(work), 1, self._counters.clock_ratio)
        power_w = cost.energy_j / cost.latency_s
        self._write(busy_since_s=began_s, power_w=power_w, batch_energy_j=cost.energy_j)
        await asyncio.sleep(cost.latency_s)
        self._slot = self._slot.ended(now_s(), cost.energy_j, len(work), cost)
        self._write()
        receipt = pb.Receipt(
            energy_j=cost.energy_j / len(work),
            energy_method="counter",
            compute_s=cost.latency_s,
            batch_size=len(work),
        )
        results = [
            pb.Result(id=each.id, response=_answer(each.request, spec.model), receipt=receipt)
            for each in work
        ]
        return rng.choice(_LIES)(results) if self.lies else results


def _swapped(results: list[pb.Result]) -> list[pb.Result]:
    """Give each request the answer of the next one."""
    answers = [each.response for each in results]
    for each, answer in zip(results, answers[1:] + answers[:1], strict=True):
        each.response = answer
    return results


def _of_another(results: list[pb.Result]) -> list[pb.Result]:
    """Answer as if clients had sent other requests."""
    for each in results:
        answer = ModelInferResponse.FromString(each.response)
        answer.id = str(int(answer.id) + 1)
        each.response = answer.SerializeToString()
    return results


def _unknown(results: list[pb.Result]) -> list[pb.Result]:
    """Add the result of work that it was not given."""
    return [*results, pb.Result(id=results[0].id + 1_000_000)]


def _huge(results: list[pb.Result]) -> list[pb.Result]:
    """Claim an energy that no GPU can draw."""
    for each in results:
        each.receipt.energy_j = 1e12
    return results


def _garbled(results: list[pb.Result]) -> list[pb.Result]:
    """Answer what is no message."""
    for each in results:
        each.response = b"\xff" * 9
    return results


_LIES: Final = (_swapped, _of_another, _unknown, _huge, _garbled)


def _answer(request: bytes, model: str) -> bytes:
    number = ModelInferRequest.FromString(request).id
    return ModelInferResponse(model_name=model, id=number).SerializeToString()


def _start(spec: Path, _log: Path, _environment: Mapping[str, str]) -> Worker:
    return Worker(spec)


def _running(folder: Path) -> dict[Path, Worker]:
    return {each.path: each for each in workers if each.path.parent == folder and each.alive()}


class Link:
    """A router's stream to a worker, in place of `services.kit.h2.ClientStream`."""

    def __init__(self, call: Call, on_message: Any) -> None:
        loop = asyncio.get_running_loop()
        self._call, self.reason, self.transport = call, "the connection was closed", self
        self.closed, self.greeted = loop.create_future(), loop.create_future()
        self._pump = loop.create_task(self._receive(on_message))

    @property
    def ready(self) -> bool:
        return self._call.status is None

    async def _receive(self, on_message: Any) -> None:
        why = self.reason
        try:
            while (data := await self._call.read()) is not EOF:
                if not self.greeted.done():
                    self.greeted.set_result(None)
                if not self.closed.done():
                    on_message(self, data)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            why = str(error)
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(why))
        self.abort(why)

    def send(self, pieces: Any, _size: int) -> None:
        if self._call.status is None:
            self._call.send(True, self._call.requests.put, b"".join(pieces))

    def abort(self, reason: str = "") -> None:
        self.reason = reason or self.reason
        self._call.cancel()
        if not self.closed.done():
            self.closed.set_result(None)


def _links(_tls: Any, *, dead_after_s: float, **_: Any) -> Callable[..., Any]:
    async def opened(endpoint: str, on_message: Any, _on_room: Any) -> Link:
        options = [("grpc.keepalive_time_ms", dead_after_s * 500)]
        link = Link(Channel(endpoint, options).stream_stream(_EXECUTE)(), on_message)
        try:
            await link.greeted
        except BaseException:
            link.abort()
            raise
        return link

    return opened


class Record:
    """A record of shared memory without its checksums, which took a quarter of the time."""

    kept: Final[dict[tuple[str, int], tuple[Any, ...]]] = {}
    size = staticmethod(records.Record.size)
    damaged = False
    mapped = ""

    def __init__(self, _memory: Any, offset: int, _layout: Any) -> None:
        self._key = (Record.mapped, offset)

    def read(self) -> tuple[Any, ...] | None:
        return self.kept.get(self._key)

    def write(self, *values: Any) -> None:
        self.kept[self._key] = values


def install() -> None:
    """Put these workers in the place of processes."""
    mapped = shared_counters._map

    def remembered(path: Path) -> Any:
        Record.mapped = str(path)
        return mapped(path)

    write = shared_counters.SharedCounters.write
    used: dict[Path, dict[int, None]] = {}

    def written(self: Any, number: int, slot: Slot) -> None:
        used.setdefault(self.path, {})[number] = None
        write(self, number, slot)

    def slots_of(self: Any) -> Iterator[Slot]:
        return (self.slot(number) for number in sorted(used.get(self.path, ())))

    patch(shared_counters, _map=remembered, Record=Record)
    patch(shared_counters.SharedCounters, write=written, _used=slots_of)
    patch(processes, start=_start, running=_running)
    patch(router_app, links=_links)
    for module in (worker_allocation, worker_supervisor):
        patch(module, free_port=lambda _host: next(_ports))
