"""Python calls of one small request through a real router and a real worker.

python -m benchmarks.request_path

Router and worker run in this process, over loopback, wired as their services wire them; the client
is grpc's C core, of which no call is Python's. `sys.setprofile` counts, on the event loop's thread,
from the client's call to its answer:

- calls: starts of functions in `services/`, and resumptions of its coroutines and generators;
  comprehensions and lambdas are functions, too.
- modules: the files that they are in.
- returns: named functions that hand back another value than None.

The thread that runs the network is left out. A figure is the least of several warm requests: on a
busy machine timers of the services run within others.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from dis import opmap
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final

import grpc
import onnx
import uvloop
from onnx import TensorProto, helper

from benchmarks.harness import Figures, main
from benchmarks.router import messages
from services.gpuagent.core.worker_slot import Grant
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.shared_memory.shared_counters import opened
from services.gpuagent.worker import app as worker
from services.kit import config
from services.kit.clock import RealClock
from services.kit.net import free_port
from services.kit.rpc import Limits, serving
from services.kit.telemetry import logs
from services.router.adapters.worker_stream import WorkerStreams, links
from services.router.core.accounting.account import Account
from services.router.core.model import Instance, ModelRoutes, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.runtime.engine import Engine
from services.router.runtime.forward_port import ForwardPort
from services.router.servicer import InferenceServicer, add_inference

_SERVICES: Final = str(Path(worker.__file__).parents[2]) + "/"
_WARM, _COUNTED = 50, 15
_CREDITS: Final = 16
_MESSAGE_BYTES: Final = 2**20
_RETURN: Final = opmap["RETURN_VALUE"]


@dataclass
class Calls:
    """Calls of one request. Attributes: by_module, returns."""

    by_module: Counter[str] = field(default_factory=Counter)
    returns: int = 0

    def profile(self, frame: FrameType, event: str, returned: object) -> None:
        """Count an event of the interpreter."""
        code = frame.f_code
        if not code.co_filename.startswith(_SERVICES):
            return
        if event == "call":
            self.by_module[code.co_filename.removeprefix(_SERVICES)] += 1
        elif event == "return" and returned is not None and not code.co_name.startswith("<"):
            self.returns += code.co_code[frame.f_lasti] == _RETURN  # else it is suspended


@dataclass(frozen=True)
class RequestPath:
    """Calls, modules and returns of one request, and the calls in each module."""

    calls: int
    modules: int
    returns: int
    by_module: Counter[str]

    def totals(self) -> dict[str, int]:
        """Return the row of a table."""
        return {"calls": self.calls, "modules": self.modules, "returns": self.returns}

    @classmethod
    def of(cls, requests: Sequence[Calls]) -> "RequestPath":
        """Return the figures of the request with the fewest calls."""
        least = min(requests, key=lambda each: each.by_module.total())
        by_module = least.by_module
        return cls(by_module.total(), len(by_module), least.returns, by_module)


async def count() -> RequestPath:
    """Count the calls of small requests, one at a time."""
    body, found = messages.request("small"), []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="bench-path-"))
        endpoint = await stack.enter_async_context(running_worker(Path(folder)))
        port = await stack.enter_async_context(running_router(endpoint))
        infer = messages.infer(await stack.enter_async_context(messages.channel(port)))
        for _ in range(_WARM):
            await infer(body)
        for _ in range(_COUNTED):
            calls = Calls()
            sys.setprofile(calls.profile)
            await infer(body)
            sys.setprofile(None)
            found.append(calls)
            await asyncio.sleep(0.01)  # what follows an answer is no part of the next
    return RequestPath.of(found)


def measured() -> RequestPath:
    """Count on an event loop of its own."""
    logs.configure("benchmark", level="error")
    return uvloop.run(count())


def figures() -> list[Figures]:
    """Return a request's calls, together and by module."""
    found = measured()
    rows = [{"module": name, "calls": calls} for name, calls in found.by_module.most_common()]
    return [
        Figures("Python calls of one small request, router and worker", [found.totals()]),
        Figures("The same by module", rows),
    ]


@asynccontextmanager
async def running_worker(folder: Path) -> AsyncIterator[str]:
    """Run a worker; yield its address."""
    endpoint = f"127.0.0.1:{free_port()}"
    spec = WorkerSpec(
        segment_id="segment",
        model=messages.MODEL,
        variant=messages.VARIANT,
        file=_network(folder / "ten.onnx"),
        batch_size=_CREDITS,
        listen=endpoint,
        ledger=folder / "gpu.ledger",
        slot=0,
        siblings=(0,),
        slice_uuid="MIG-00000000-0000-0000-0000-000000000001",
        costs=None,
        log_level="error",
        orphan_timeout_s=600.0,
    )
    with opened(spec.ledger) as counters:
        counters.beat()
        counters.set_grant(0, Grant(idle_power_w=10.0))
        counters.set_grant(0, Grant(50.0, 10.0, "counter"))  # as an agent once it has measured
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run(spec, counters, stop))
            yield endpoint
            stop.set()


@asynccontextmanager
async def running_router(endpoint: str, forwards: ForwardPort | None = None) -> AsyncIterator[int]:
    """Run a router of one model with one worker, which may forward; yield its port."""
    clock = RealClock()
    instance = Instance(
        endpoint,
        "segment",
        messages.MODEL,
        messages.VARIANT,
        0.9,
        1.0,
        _CREDITS,
        zone=messages.ZONE,
    )
    routes = ModelRoutes(messages.MODEL, 1.0, 95.0, "shares")
    streams = WorkerStreams(links(None, dead_after_s=20.0, message_bytes=_MESSAGE_BYTES), clock)
    engine = Engine(
        ModelRegistry(RoutingTable(1, 1, (routes,)), {}),
        streams.connect,
        open_account=lambda model: Account(model, {messages.ZONE: 200.0}.get),
        clock=clock,
        default_timeout_s=30.0,
        forwards=forwards,
    )
    servicer = InferenceServicer(engine, clock, config.Router(), "error")

    def register(server: grpc.aio.Server) -> None:
        add_inference(servicer, server)

    async with (
        streams,
        serving(
            "127.0.0.1:0",
            register,
            (),
            limits=Limits(message_bytes=_MESSAGE_BYTES),
            transport="own",
        ) as server,
    ):
        engine.swap(RoutingTable(2, 1, (replace(routes, instances=(instance,)),)))
        yield server.port


def _network(path: Path) -> Path:
    """Write a network that returns the first ten numbers of each row."""
    names = {"starts": 0, "ends": 10, "axes": 1}
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", *names], ["y"])],
        "ten",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [helper.make_tensor(name, TensorProto.INT64, [1], [at]) for name, at in names.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


if __name__ == "__main__":
    main("request_path", figures)
