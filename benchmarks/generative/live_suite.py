"""The suite of `examples/generative` on one core, and a client that times its streams."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import psutil
import yaml

from benchmarks.generative.without_limits import relay
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.predictor.v1 import predictor_pb2
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config.loader import load
from services.kit.net import free_port
from services.local.up.suite import Suite, programs

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub
    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub
    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

EXAMPLE: Final = Path(__file__).parents[2] / "examples/generative/cinquefoil.yaml"
MODEL: Final = "chat"
SLO_S: Final = 4.0
"""Of an answer, which takes three quarters of a second: no request is overtaken by 40 s or more."""

_PATIENCE_S: Final = 600.0
_CACHED: Final = (predictor_pb2.SOURCE_EXACT, predictor_pb2.SOURCE_SEMANTIC)


@dataclass(frozen=True, slots=True)
class Question:
    """One request.

    Attributes:
        prompt: A user's words.
        max_tokens: Limit of the answer's length, tokens.
    """

    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Times and length of an answer.

    Attributes:
        due_s: Time at which it was due, of `time.monotonic`.
        first_s, last_s: Time since then to the first text, and to the end.
        tokens: Length of the answer, tokens.
    """

    due_s: float
    first_s: float
    last_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """Counts of predictions.

    Attributes:
        predicted: Requests that waited and were predicted before they were served.
        hits: Share of those predicted by the cache, 0..1.
        right: Share of those with a known length that are in the predicted class, 0..1.
    """

    predicted: int
    hits: float
    right: float


@dataclass(frozen=True, slots=True)
class LiveSuite:
    """A suite that runs. Attributes: name, lost (errors that clients saw)."""

    name: str
    lost: list[str]
    _suite: Suite
    _router: GRPCInferenceServiceAsyncStub
    _planner: PlannerServiceAsyncStub
    _predictor: PredictorServiceAsyncStub

    async def order(self, discipline: str) -> None:
        """Serve in this order from now on."""
        request = planner_pb2.SetPolicyRequest(model=MODEL, discipline=discipline)
        await self._planner.SetPolicy(request)

    async def send(self, question: Question, due_s: float) -> Answer | None:
        """Send the request at a time of `time.monotonic`; None: there was an error."""
        await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
        first_s, tokens = 0.0, 0
        try:
            call = self._router.ModelStreamInfer(iter((_request(question),)), timeout=_PATIENCE_S)
            async for response in call:
                if response.error_message:
                    self.lost.append(response.error_message)
                    return None
                first_s = first_s or time.monotonic() - due_s
                tokens = response.infer_response.parameters["output_tokens"].int64_param
        except grpc.aio.AioRpcError as error:
            self.lost.append(str(error.details()))
            return None
        return Answer(due_s, first_s, time.monotonic() - due_s, tokens)

    async def computed(self) -> tuple[int, float]:
        """Return how many answers there were, and the time that they kept a slot, added up, s."""
        request = pb.ModelStatisticsRequest(name=MODEL)
        (model,) = (await self._router.ModelStatistics(request)).model_stats
        span = model.inference_stats.compute_infer
        return span.count, span.ns / 1e9

    def share_cores(self) -> None:
        """Allow its worker any core: other load on one must not slow one suite only."""
        agent = next(pid for name, pid in self._suite.processes.items() if "gpuagent" in name)
        for worker in psutil.Process(agent).children(recursive=True):
            for thread in worker.threads():
                os.sched_setaffinity(thread.id, os.sched_getaffinity(0))

    async def predictions(self) -> Predicted:
        """Return what became of its predictions."""
        request = predictor_pb2.GetStatisticsRequest(model=MODEL)
        (model,) = (await self._predictor.GetStatistics(request)).models
        predicted = sum(each.predictions for each in model.sources)
        hits = sum(each.predictions for each in model.sources if each.source in _CACHED)
        judged = sum(each.judged for each in model.sources)
        right = sum(each.right for each in model.sources)
        return Predicted(predicted, hits / max(predicted, 1), right / max(judged, 1))

    async def ready(self) -> None:
        """Wait until a worker has loaded the model."""
        ready = pb.ModelReadyRequest(name=MODEL)
        async with asyncio.timeout(_PATIENCE_S):
            while not (await self._router.ModelReady(ready)).ready:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)


@asynccontextmanager
async def suite(folder: Path, model: Path) -> AsyncIterator[LiveSuite]:
    """Run a suite that serves shortest first while the block runs.

    Args:
        folder: For its files; it exists, and the suite has its name.
        model: Embedding model of the predictor.
    """
    ports = {service: f"127.0.0.1:{free_port()}" for service in (*_SERVICES, "relay")}
    config, relayed = folder / "cinquefoil.yaml", folder / "relayed.yaml"
    config.write_text(yaml.safe_dump(_deployment(folder, model, ports)))
    to_relay = ports | {"predictor": ports["relay"]}
    relayed.write_text(yaml.safe_dump(_deployment(folder, model, to_relay)))
    alone = [each for each in programs(load(config), config) if each.name == "predictor"]
    async with (
        Suite(alone, folder / "logs"),
        grpc.aio.insecure_channel(ports["predictor"]) as predictor,
        relay(ports["relay"], PredictorServiceStub(predictor)),
        Suite.of(relayed, folder / "logs", without=["predictor"]) as running,
        grpc.aio.insecure_channel(ports["router"]) as router,
        grpc.aio.insecure_channel(ports["planner"]) as planner,
    ):
        found = LiveSuite(
            folder.name,
            [],
            running,
            GRPCInferenceServiceStub(router),
            PlannerServiceStub(planner),
            PredictorServiceStub(predictor),
        )
        await found.ready()
        found.share_cores()
        yield found


_SERVICES: Final = ("carbon", "planner", "node", "predictor", "router")


def _deployment(folder: Path, model: Path, ports: dict[str, str]) -> dict[str, Any]:
    """Return the example's deployment with one slot, on ports and with files of its own."""
    made: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    for service in ("carbon", "planner", "router"):
        made[service]["listen"] = ports[service]
    made["router"]["http_listen"] = ""
    made["planner"] |= {"database": str(folder / "planner.sqlite3"), "batch_sizes": [1]}
    (node,) = made["nodes"].values()
    node |= {"listen": ports["node"], "state_dir": str(folder / "state"), "cpu": {"cores": 1}}
    made["models"][MODEL] |= {
        "discipline": "ssjf",
        "slo": {"latency_s": SLO_S, "percentile": 95},
        "default_deadline_s": _PATIENCE_S,
    }
    (variant,) = made["models"][MODEL]["variants"].values()
    variant["runtime"]["max_tokens"] = variant["runtime"]["context_tokens"]
    made["predictor"] |= {"listen": ports["predictor"], "model": str(model)}
    made["predictor"]["cache"] = {"file": str(folder / "predictor.sqlite3")}
    return made


def _request(question: Question) -> pb.ModelInferRequest:
    text = question.prompt.encode()
    request = pb.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    request.parameters["max_tokens"].int64_param = question.max_tokens
    request.parameters["temperature"].double_param = 0.0
    return request
