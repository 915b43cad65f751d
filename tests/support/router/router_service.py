"""Peers of a router under test: real gRPC servers whose words the test decides."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from cinquefoil.carbon.v1 import carbon_pb2_grpc
from cinquefoil.gpuagent.v1 import worker_pb2, worker_pb2_grpc
from cinquefoil.planner.v1 import plan_pb2, planner_pb2_grpc
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from services.kit.config import Deployment, Tls
from services.kit.process.reload import Reloads
from services.kit.rpc import Limits, dial, serving
from services.router.app import run
from tests.support.router.router_peers import ScriptedCarbon, ScriptedPlanner
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.router.v1.router_pb2_grpc import RouterServiceAsyncStub

Context = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[worker_pb2.Work], worker_pb2.Result | None]

POWER_LIMIT_W = 300.0
"""Power limit of the GPUs of scripted workers, W."""

RECEIPT = worker_pb2.Receipt(
    energy_j=3.6,
    idle_energy_j=0.5,
    energy_method="model",
    queue_s=0.001,
    compute_s=0.004,
    batch_size=1,
)
METADATA = pb.ModelMetadataResponse(
    versions=["1"],
    platform="onnxruntime_onnx",
    inputs=[pb.ModelMetadataResponse.TensorMetadata(name="x", datatype="FP32", shape=[-1, 4])],
    outputs=[pb.ModelMetadataResponse.TensorMetadata(name="y", datatype="FP32", shape=[-1])],
)


def infer_request(*values: float, model: str = "digits", name: str = "") -> pb.ModelInferRequest:
    """A request for one row."""
    row = np.array(values or (1, 2, 3, 4), dtype=np.float32)
    return pb.ModelInferRequest(
        model_name=model,
        id=name,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, row.size])
        ],
        raw_input_contents=[row.tobytes()],
    )


def computed(work: worker_pb2.Work) -> worker_pb2.Result:
    """Sum each row; refuse what is not FP32 of shape [-1, 4]."""
    request = pb.ModelInferRequest.FromString(work.request)
    given = request.inputs[0]
    if given.datatype != "FP32":
        return refusal(work, f"input 'x' is FP32, got {given.datatype}")
    if len(given.shape) != 2 or given.shape[1] != 4:
        return refusal(work, f"input 'x' has shape [-1, 4], got {list(given.shape)}")
    rows = np.frombuffer(request.raw_input_contents[0], dtype=np.float32).reshape(given.shape)
    response = pb.ModelInferResponse(
        model_name=request.model_name,
        model_version="1",
        id=request.id,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name="y", datatype="FP32", shape=[given.shape[0]]
            )
        ],
        raw_output_contents=[rows.sum(axis=1).tobytes()],
    )
    return worker_pb2.Result(id=work.id, response=response.SerializeToString(), receipt=RECEIPT)


def refusal(
    work: worker_pb2.Work, message: str, status: str = "INVALID_ARGUMENT"
) -> worker_pb2.Result:
    return worker_pb2.Result(id=work.id, status=status, message=message)


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """A worker that answers as `answer` says; None: it holds the work until `finish`."""

    def __init__(self, segment_id: str, answer: Answer = computed, credits_: int = 4) -> None:
        self.segment_id = segment_id
        self.answer = answer
        self.credits = credits_
        self.decoupled = False
        self.max_batch = 0
        self.server = ""
        self.adapters: tuple[str, ...] = ()
        self.endpoint = ""
        self.variant = f"variant-{segment_id}"
        self.accuracy = 0.9
        self.metadata = METADATA
        self.frames: list[int] = []
        self.works: list[worker_pb2.Work] = []
        self.cancelled: list[int] = []
        self.held: list[worker_pb2.Work] = []
        self.streams = 0
        self.arrived = asyncio.Event()
        self._out: asyncio.Queue[worker_pb2.ExecuteResponse | None] = asyncio.Queue()

    def finish(self, answer: Answer = computed) -> None:
        """Answer what is held."""
        held, self.held = self.held, []
        results = [result for work in held if (result := answer(work))]
        self._out.put_nowait(worker_pb2.ExecuteResponse(results=results))

    def say(self, *results: worker_pb2.Result) -> None:
        """Send results of held work, parts of answers among them."""
        self._out.put_nowait(worker_pb2.ExecuteResponse(results=results))

    def grant(self, credits_: int) -> None:
        """Change how many requests this stream may have in flight."""
        self._out.put_nowait(worker_pb2.ExecuteResponse(credits=credits_))

    def drain(self) -> None:
        self._out.put_nowait(worker_pb2.ExecuteResponse(draining=True))

    def die(self) -> None:
        """Break the stream as a killed process does."""
        self._out.put_nowait(None)

    async def Execute(
        self, requests: AsyncIterator[worker_pb2.ExecuteRequest], context: Context
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        self._out, self.held = asyncio.Queue(), []
        self.streams += 1
        hello = worker_pb2.Hello(
            segment_id=self.segment_id,
            model="digits",
            variant=self.variant,
            credits=self.credits,
            metadata=self.metadata.SerializeToString(),
            decoupled=self.decoupled,
            max_batch=self.max_batch,
            server=self.server,
            adapters=self.adapters,
        )
        yield worker_pb2.ExecuteResponse(hello=hello)
        reader = asyncio.create_task(self._read(requests, self._out))
        try:
            while (frame := await self._out.get()) is not None:
                yield frame
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
        finally:
            self.streams -= 1
            reader.cancel()

    async def _read(
        self,
        requests: AsyncIterator[worker_pb2.ExecuteRequest],
        out: asyncio.Queue[worker_pb2.ExecuteResponse | None],
    ) -> None:
        async for frame in requests:
            self.frames.append(len(frame.work))
            self.cancelled.extend(frame.cancelled_ids)
            results = []
            for work in frame.work:
                self.works.append(work)
                result = self.answer(work)
                if result is None:
                    self.held.append(work)
                else:
                    results.append(result)
            self.arrived.set()
            if results:
                out.put_nowait(worker_pb2.ExecuteResponse(results=results))


@dataclass
class World:
    """A running router and its peers.

    Attributes:
        tls: Certificates of all of them and of an operator "test"; None: plaintext.
        made: The router's deployment.
        reloads: Takes over another one.
    """

    planner: ScriptedPlanner
    stack: AsyncExitStack
    planner_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    carbon_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    planner_port: int = 0
    tls: Tls | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    http: str = ""
    channel: grpc.aio.Channel = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    made: Deployment = field(init=False)
    reloads: Reloads = field(init=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def of(self, role: str, name: str = "") -> Tls | None:
        """Return the certificate of a bearer."""
        return None if self.tls is None else self.tls.of(role, name)

    async def planner_returns(self) -> None:
        """Start the planner, on the port it had."""
        server = await self.planner_stack.enter_async_context(
            serving(
                f"127.0.0.1:{self.planner_port}",
                lambda server: planner_pb2_grpc.add_PlannerServiceServicer_to_server(
                    self.planner, server
                ),
                (),
                tls=self.of("planner"),
                grace_s=0,
            )
        )
        self.planner_port = server.port

    async def planner_leaves(self) -> None:
        """Stop the planner; the router's streams to it break."""
        await self.planner_stack.aclose()

    async def worker(
        self, name: str, answer: Answer = computed, *, credits_: int = 4
    ) -> ScriptedWorker:
        """Start a worker; the router does not know it yet."""
        made = ScriptedWorker(name, answer, credits_)
        server = await self.stack.enter_async_context(
            serving(
                "127.0.0.1:0",
                lambda server: worker_pb2_grpc.add_WorkerServiceServicer_to_server(made, server),
                (),
                tls=self.of("worker", "one"),
                grace_s=0,
                limits=Limits(message_bytes=128 * 2**20),
            )
        )
        made.endpoint = f"127.0.0.1:{server.port}"
        return made

    async def route(
        self, *workers: ScriptedWorker, shares: Iterable[float] = (), choice: str = "shares"
    ) -> None:
        """Send requests to these workers, and wait until the router has their hellos."""
        wanted = tuple(shares) or (1 / max(len(workers), 1),) * len(workers)
        await self.planner.route(
            *(routed(worker, share) for worker, share in zip(workers, wanted, strict=True)),
            choice=choice,
        )
        wanted_up = {worker.endpoint for worker in workers}

        async def connected() -> bool:
            router: RouterServiceAsyncStub = RouterServiceStub(self.channel)
            status = await router.GetStatus(router_pb2.GetStatusRequest())
            up = (each for model in status.models for each in model.instances if each.connected)
            return wanted_up <= {each.endpoint for each in up}

        await until(connected)
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Wait until the router reports the newest table as the one in use."""
        planner = self.planner
        await until(
            lambda: (
                bool(planner.reports)
                and planner.reports[-1].routing_revision == planner.routing.revision
            )
        )


def routed(worker: ScriptedWorker, share: float = 1.0) -> plan_pb2.Instance:
    return plan_pb2.Instance(
        endpoint=worker.endpoint,
        segment_id=worker.segment_id,
        variant=worker.variant,
        accuracy=worker.accuracy,
        share=share,
        credits=worker.credits,
        zone="US-CAL",
        pue=1.5,
        power_limit_w=POWER_LIMIT_W,
    )


def deployment(
    planner_port: int,
    carbon_port: int,
    *,
    max_queue: int = 3,
    default_deadline_s: float | None = None,
    hedge_after_s: float | None = None,
    predictor: str = "",
    sections: Mapping[str, Any] | None = None,
    **router: Any,
) -> Deployment:
    """A file with one model, "digits", and further sections."""
    profile = {"kind": "analytic", "gmacs_per_item": 1.0}
    return Deployment.model_validate(
        {
            "version": "v1",
            "carbon": {
                "address": f"127.0.0.1:{carbon_port}",
                "zones": {"US-CAL": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 1.0}}},
            },
            "planner": {"address": f"127.0.0.1:{planner_port}"},
            "nodes": {"one": {"zone": "US-CAL"}},
            "models": {
                "digits": {
                    "slo": {"latency_s": 0.5, "percentile": 90},
                    "demand_rps": 1.0,
                    "max_queue": max_queue,
                    "default_deadline_s": default_deadline_s,
                    "hedge_after_s": hedge_after_s,
                    "variants": {"v": {"file": "v.onnx", "accuracy": 0.9, "profile": profile}},
                }
            },
            "router": {"listen": "127.0.0.1:0", **router},
            "predictor": {"address": predictor} if predictor else None,
            **(sections or {}),
        }
    )


@asynccontextmanager
async def running(
    *, intensity_gco2e_per_kwh: float | None = 1000.0, tls: Tls | None = None, **settings: Any
) -> AsyncIterator[World]:
    """Run a router between a scripted planner and a scripted carbon service.

    Args:
        intensity_gco2e_per_kwh: Of the carbon service; None: it sends nothing.
        tls: Certificates, as of `World`; `settings` has the deployment's section.
        settings: As of `deployment`.
    """
    planner = ScriptedPlanner()  # type: ignore[abstract]  # a router calls nothing else
    carbon = ScriptedCarbon(intensity_gco2e_per_kwh)  # type: ignore[abstract]  # as above
    async with AsyncExitStack() as stack:
        world = World(planner, stack, tls=tls)
        stack.push_async_callback(world.carbon_stack.aclose)
        carbon_server = await world.carbon_stack.enter_async_context(
            serving(
                "127.0.0.1:0",
                lambda s: carbon_pb2_grpc.add_CarbonServiceServicer_to_server(carbon, s),
                (),
                tls=world.of("carbon"),
                grace_s=0,
            )
        )
        await world.planner_returns()
        stack.push_async_callback(world.planner_leaves)
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        made = world.made = deployment(world.planner_port, carbon_server.port, **settings)
        world.reloads = Reloads(made)
        work = run(made, world.stop, started.set_result, reloads=world.reloads)
        world.task = asyncio.create_task(work)
        await asyncio.wait((world.task, started), return_when=asyncio.FIRST_COMPLETED)
        world.port = started.result()
        world.http = made.router.http_listen
        world.channel = (
            grpc.aio.insecure_channel(world.address)
            if tls is None
            else dial(world.address, world.of("operator", "test"))
        )
        try:
            yield world
        finally:
            await world.channel.close()
            world.stop.set()
            await world.task
