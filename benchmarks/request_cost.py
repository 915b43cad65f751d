"""Cost of a request to the router in Python, part by part, with no gRPC around it.

python -m benchmarks.request_cost [--json FILE]

Each part is timed by itself. A frame carries 16 small requests (284 bytes) or one image (602 kB).
`protobuf` is the same part done with protobuf's own classes. `answered` is all of a small request
from its bytes to its answer: head, dispatcher, account and receipt, future and callbacks, with a
worker that answers at once; `served` adds the guard that is around every call. `caller's role` and
`identity` are what mutual TLS adds: whether the bearer of the certificate may call the method, and
who takes turns, from the context of a real call.

The second table is of a small request through a real router and a real worker: see
`benchmarks.request_path`, which lists the calls of each module.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import uvloop
import yaml

from benchmarks import request_path
from benchmarks.harness import Figures, main
from benchmarks.router import messages
from benchmarks.router.backend import raw
from benchmarks.router.messages import INFER, request
from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2
from services.kit.clock import RealClock
from services.kit.config import Access as Settings
from services.kit.config import Tls
from services.kit.request_cost import Cost
from services.kit.rpc import Access, caller, dial, serving
from services.kit.rpc.client_identity import client_of
from services.kit.rpc.guard import guard
from services.kit.telemetry import logs
from services.local.pki import TRUST_DOMAIN, Authority, Identity, settings
from services.router.adapters.worker_stream import to_result
from services.router.core.accounting.account import Account
from services.router.core.frames import frame
from services.router.core.model import Instance, ModelRoutes, Request, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.wire import read_head
from services.router.core.worker_port import Hello, Result
from services.router.runtime.decision_executor import DecisionExecutor
from services.router.runtime.engine import Engine

_ROUNDS, _TIMES, _FRAME, _IN_FLIGHT = 7, 2_000, 16, 64
_BODY = request("small")
_MODEL = read_head(_BODY).model_name
_INSTANCE = Instance("h:1", "s", _MODEL, "v", 0.9, 1.0, _IN_FLIGHT, zone="z")
_ROUTES = ModelRoutes(_MODEL, 1.0, 95.0, "shares", (_INSTANCE,))
_RECEIPT = pb.Receipt(energy_j=1.0, energy_method="model", batch_size=1)
_RESULTS = pb.ExecuteResponse(
    results=[pb.Result(id=n, response=bytes(60), receipt=_RECEIPT) for n in range(_FRAME)]
).SerializeToString()


def measure() -> list[Figures]:
    """Time every part."""
    logs.configure("benchmark", level="error")
    small, image = _work("small", _FRAME), _work("image", 1)
    parts = [
        ("head of a small request", lambda: read_head(small[0].body), 1),
        ("   protobuf", lambda: grpc_service_pb2.ModelInferRequest.FromString(small[0].body), 1),
        ("head of an image", lambda: read_head(image[0].body), 1),
        ("   protobuf", lambda: grpc_service_pb2.ModelInferRequest.FromString(image[0].body), 1),
        ("frame, small", lambda: frame(small, [], 1.0), _FRAME),
        ("   protobuf", lambda: _frame_by_protobuf(small), _FRAME),
        ("frame, image", lambda: frame(image, [], 1.0), 1),
        ("   protobuf", lambda: _frame_by_protobuf(image), 1),
        ("results", _read_results, _FRAME),
    ]
    rows = [{"part": name, "us": _least_us(once) / per} for name, once, per in parts]
    rows += uvloop.run(_whole())
    with TemporaryDirectory(prefix="bench-cost-") as folder:
        rows += uvloop.run(_checks(Path(folder)))
    return [
        Figures("CPU time per request", rows, f"The least of {_ROUNDS} rounds."),
        Figures("Python calls per request, router and worker", [request_path.measured().totals()]),
    ]


def _least_us(once: Callable[[], object]) -> float:
    rounds = []
    for _ in range(_ROUNDS):
        started_s = time.thread_time()
        for _ in range(_TIMES):
            once()
        rounds.append((time.thread_time() - started_s) / _TIMES)
    return min(rounds) * 1e6


def _work(size: str, count: int) -> list[Request]:
    body = request(size)
    return [Request(n, _MODEL, body, 0.0, 30.0) for n in range(1, count + 1)]


def _frame_by_protobuf(work: list[Request]) -> bytes:
    works = [
        pb.Work(id=one.number, request=one.body, remaining_s=29.0, waited_s=1.0) for one in work
    ]
    return pb.ExecuteRequest(work=works).SerializeToString()


def _read_results() -> list[Result]:
    return [to_result(result) for result in pb.ExecuteResponse.FromString(_RESULTS).results]


class _Echo:
    """A link whose worker answers all that came in one turn of the loop, in the next."""

    def __init__(self, instance: Instance, listener: DecisionExecutor) -> None:
        self._instance = instance
        self._listener = listener
        self._held: list[int] = []
        asyncio.get_running_loop().call_soon(listener.hello, instance, Hello(_IN_FLIGHT, b""))

    def send(self, request: Request) -> None:
        if not self._held:
            asyncio.get_running_loop().call_soon(self._answer)
        self._held.append(request.number)

    def withdraw(self, number: int) -> None:
        """Answer it all the same."""

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self) -> None:
        held, self._held = self._held, []
        cost = Cost(1.0, 0.0, "model", 0.0, 0.0, 1)
        results = [Result(number, response=bytes(60), cost=cost) for number in held]
        self._listener.results(self._instance, results)


class _Context:
    """As much of a call as the guard looks at."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "benchmark"),)

    def time_remaining(self) -> None:
        return None

    def code(self) -> int:
        return 0


async def _whole() -> list[dict[str, Any]]:
    engine = Engine(
        ModelRegistry(RoutingTable(1, 1, (_ROUTES,)), {}),
        _Echo,
        open_account=lambda routes: Account(routes, {"z": 200.0}.get),
        clock=RealClock(),
        default_timeout_s=30.0,
    )
    engine.swap(RoutingTable(2, 1, (_ROUTES,)))

    async def answered(body: bytes, _: Any) -> bytes:
        return (await engine.infer(read_head(body), body, None)).body

    handler: Any = grpc.unary_unary_rpc_method_handler(answered)
    served = guard("/benchmark/ModelInfer", handler).unary_unary
    return [
        {"part": "answered", "us": await _least_in_flight_us(answered)},
        {"part": "served", "us": await _least_in_flight_us(served)},
    ]


async def _checks(folder: Path) -> list[dict[str, Any]]:
    """Time the checks of a caller within a call that a certificate was shown for."""
    authority = Authority.made(folder, TRUST_DOMAIN)
    for role, name in (("router", ""), ("client", "app")):
        authority.issue(Identity(role, name, ("127.0.0.1",)), days=1)
    tls = Tls.model_validate(yaml.safe_load(settings(folder, TRUST_DOMAIN))["tls"])
    access, rows = Access(Settings().principals), list[dict[str, Any]]()

    async def answered(body: bytes, context: Any) -> bytes:
        checks = {
            "caller's role": lambda: access.admit(INFER, context),
            "identity": lambda: client_of(context, caller()),
        }
        rows.extend({"part": name, "us": _least_us(once)} for name, once in checks.items())
        return body

    async with (
        serving(
            "127.0.0.1:0",
            lambda server: server.add_generic_rpc_handlers((raw(answered),)),
            (),
            tls=tls.of("router"),
            access=access,
            transport="own",
        ) as server,
        dial(f"127.0.0.1:{server.port}", tls.of("client", "app")) as channel,
    ):
        await messages.infer(channel)(_BODY)
    return rows


async def _least_in_flight_us(once: Any) -> float:
    async def caller(times: int) -> None:
        context = _Context()
        for _ in range(times):
            await once(_BODY, context)

    rounds = []
    for _ in range(_ROUNDS):
        started_s = time.thread_time()
        async with asyncio.TaskGroup() as callers:
            for _ in range(_IN_FLIGHT):
                callers.create_task(caller(100))
        rounds.append((time.thread_time() - started_s) / (_IN_FLIGHT * 100))
    return min(rounds) * 1e6


if __name__ == "__main__":
    main("request_cost", measure)
