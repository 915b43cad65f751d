"""The router beside a predictor: short answers go first, and nothing depends on its being there."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cinquefoil.gpuagent.v1 import worker_pb2
from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import (
    PredictorServiceServicer,
    PredictorServiceStub,
    add_PredictorServiceServicer_to_server,
)
from inference import grpc_service_pb2
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config.loader import ENV_FILE
from services.kit.net import free_port
from services.kit.rpc import dial, serving
from tests.support.predictor.predictor_service import deployed, observe
from tests.support.router.router_service import ScriptedWorker, World, running
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub
    from tests.conftest import Deploy

SHORT, LONG = 0, 4
TOKENS = {SHORT: 3, LONG: 300}

Answer = Callable[[pb.PredictRequest], list[pb.PredictResponse]]


def predicted(question: pb.PredictRequest) -> list[pb.PredictResponse]:
    """Return predictions by the first character of the prompt, its class."""
    return [
        pb.PredictResponse(
            id=question.id,
            rank=int(question.prompt[:1]) / 5,
            source=pb.SOURCE_SEMANTIC,
            prompt_key=b"key of " + question.prompt,
        )
    ]


def nonsense(question: pb.PredictRequest) -> list[pb.PredictResponse]:
    """Return answers to unknown requests, an impossible rank, and everything twice."""
    return [
        pb.PredictResponse(id=2**63),
        pb.PredictResponse(id=question.id, rank=77),
        *predicted(question) * 2,
    ]


class Oracle(PredictorServiceServicer):
    """A predictor whose words the test decides; None: it does not even listen."""

    def __init__(self, answer: Answer | None = predicted) -> None:
        self.answer = answer
        self.queries = 0
        self.limits: set[int] = set()
        self.tenants: dict[bytes, str] = {}
        self.observed: list[pb.Observation] = []

    async def Predict(
        self, requests: AsyncIterator[pb.PredictRequest], context: Any
    ) -> AsyncIterator[pb.PredictResponse]:
        if self.answer is None:
            await asyncio.Event().wait()
        async for question in requests:
            self.queries += 1
            self.limits.add(question.max_tokens)
            self.tenants[question.prompt] = question.tenant
            for response in self.answer(question) if self.answer else ():
                yield response

    async def Observe(self, request: pb.ObserveRequest, context: Any) -> pb.ObserveResponse:
        self.observed += request.observations
        return pb.ObserveResponse(learned=len(request.observations))


def oracle(answer: Answer | None = predicted) -> Oracle:
    return Oracle(answer)  # type: ignore[abstract]  # a router calls nothing else


@dataclass
class Suite:
    """A router with one worker that answers one request at a time, and a predictor."""

    world: World
    worker: ScriptedWorker
    oracle: Oracle
    served: list[str] = field(default_factory=list)

    async def work(self, short_s: float, long_s: float) -> None:
        """Answer until cancelled, each in its time."""
        while True:
            await until(lambda: bool(self.worker.held), limit_s=60)
            prompt = prompt_of(self.worker.held[0])
            self.served.append(prompt)
            await asyncio.sleep(short_s if prompt.startswith("0") else long_s)
            self.worker.finish(answered)

    async def infer(self, prompt: str, client: str = "") -> str:
        infer = GRPCInferenceServiceStub(self.world.channel).ModelInfer
        named = (("x-client-id", client),) if client else None
        response = await infer(infer_request(prompt), metadata=named)
        return response.raw_output_contents[0].decode()

    async def predictions(self) -> int:
        """Return the number of predictions that have come, from Triton's statistics."""
        statistics = await GRPCInferenceServiceStub(self.world.channel).ModelStatistics(
            grpc_service_pb2.ModelStatisticsRequest(name="digits")
        )
        return statistics.model_stats[0].inference_stats.cache_hit.count


@asynccontextmanager
async def suite(known: Oracle | None, port: int = 0) -> AsyncIterator[Suite]:
    """Run a router with a predictor; None: at its address no server listens, or another does."""
    async with AsyncExitStack() as stack:
        port = port or free_port()
        if known is not None:
            await stack.enter_async_context(
                serving(
                    f"127.0.0.1:{port}",
                    lambda server: add_PredictorServiceServicer_to_server(known, server),
                    (),
                    grace_s=0,
                )
            )
        async with running(max_queue=500, predictor=f"127.0.0.1:{port}") as world:
            world.planner.discipline = "ssjf"
            worker = await world.worker("a", lambda _: None, credits_=1)
            await world.route(worker)
            yield Suite(world, worker, known or oracle())


@dataclass
class RealPredictor:
    """The service as a process of its own."""

    port: int
    process: asyncio.subprocess.Process
    stub: PredictorServiceAsyncStub

    async def learn(self, prompts: list[str]) -> None:
        """Teach the predictor the lengths of answers to some prompts, several times."""
        for prompt in prompts * 3:
            await observe(self.stub, prompt.encode(), TOKENS[int(prompt[:1])])


@asynccontextmanager
async def real_predictor(deployment: Deploy, tmp_path: Path) -> AsyncIterator[RealPredictor]:
    port = free_port()
    deployed(deployment, tmp_path, listen=f"127.0.0.1:{port}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "predictor", "serve"),
        env={**os.environ, ENV_FILE: str(tmp_path / "cinquefoil.yaml")},
    )
    try:
        async with dial(f"127.0.0.1:{port}") as channel:
            stub: PredictorServiceAsyncStub = PredictorServiceStub(channel)
            await stub.GetStatistics(pb.GetStatisticsRequest(), wait_for_ready=True, timeout=30)
            yield RealPredictor(port, process, stub)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def infer_request(prompt: str) -> grpc_service_pb2.ModelInferRequest:
    text = prompt.encode()
    tensor = grpc_service_pb2.ModelInferRequest.InferInputTensor
    return grpc_service_pb2.ModelInferRequest(
        model_name="digits",
        inputs=[tensor(name="text_input", datatype="BYTES", shape=[1])],
        raw_input_contents=[len(text).to_bytes(4, "little") + text],
        parameters={"max_tokens": grpc_service_pb2.InferParameter(int64_param=TOKENS[LONG])},
    )


def prompt_of(work: worker_pb2.Work) -> str:
    request = grpc_service_pb2.ModelInferRequest.FromString(work.request)
    return request.raw_input_contents[0][4:].decode()


def answered(work: worker_pb2.Work) -> worker_pb2.Result:
    """Answer with the prompt itself; long answers end at their limit."""
    prompt = prompt_of(work)
    tokens = TOKENS[int(prompt[:1])]
    reason = "length" if tokens == TOKENS[LONG] else "stop"
    response = grpc_service_pb2.ModelInferResponse(
        model_name="digits",
        raw_output_contents=[prompt.encode()],
        parameters={"finish_reason": grpc_service_pb2.InferParameter(string_param=reason)},
    )
    receipt = worker_pb2.Receipt(batch_size=1, input_tokens=5, output_tokens=tokens)
    return worker_pb2.Result(id=work.id, response=response.SerializeToString(), receipt=receipt)


def prompts(count: int) -> list[str]:
    return [f"{SHORT if number % 2 else LONG} {number}" for number in range(count)]


async def test_lengths_are_reported_by_key_or_without_a_prediction_by_prompt() -> None:
    async with suite(oracle()) as found, asyncio.TaskGroup() as tasks:
        work = tasks.create_task(found.work(short_s=0.001, long_s=0.001))
        await asyncio.gather(*map(found.infer, prompts(20)))
        await until(lambda: len(found.oracle.observed) == 20)
        work.cancel()

    by_key = [each for each in found.oracle.observed if each.prompt_key]
    by_prompt = [each for each in found.oracle.observed if each.prompt]
    assert len(by_key) == found.oracle.queries > 0
    assert len(by_key) + len(by_prompt) == 20, "those without a prediction, by their prompts"
    for each in found.oracle.observed:
        prompt = each.prompt or each.prompt_key.removeprefix(b"key of ")
        assert each.model == "digits"
        assert each.output_tokens == TOKENS[int(prompt[:1])]
        assert each.truncated == (each.output_tokens == TOKENS[LONG])
    assert found.oracle.limits == {TOKENS[LONG]}


async def test_prompts_are_those_of_their_client_and_of_no_tenant_where_it_is_not_known() -> None:
    """No client can infer from the order of answers what another has sent."""
    async with suite(oracle()) as found, asyncio.TaskGroup() as tasks:
        work = tasks.create_task(found.work(short_s=0.001, long_s=0.001))
        clients = ["", "one", "two"] * 6
        sent = list(zip(prompts(18), clients, strict=True))
        await asyncio.gather(*(found.infer(*each) for each in sent))
        await until(lambda: len(found.oracle.observed) == 18)
        work.cancel()

    tenants = {prompt.encode(): client and f"id:{client}" for prompt, client in sent}
    by_prompt = {each.prompt: each.tenant for each in found.oracle.observed if each.prompt}
    assert found.oracle.tenants.items() <= tenants.items()
    assert by_prompt.items() <= tenants.items()
    assert len({*found.oracle.tenants.values()}) == 3


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(None, id="absent"),
        pytest.param(lambda: oracle(None), id="deaf"),
        pytest.param(lambda: oracle(lambda _: []), id="silent"),
        pytest.param(lambda: oracle(nonsense), id="nonsense"),
    ],
)
async def test_a_predictor_that_fails_changes_no_answer_and_loses_nothing(
    known: Callable[[], Oracle] | None,
) -> None:
    async with suite(known and known()) as found, asyncio.TaskGroup() as tasks:
        work = tasks.create_task(found.work(short_s=0, long_s=0))
        wanted = prompts(60)
        answers = await asyncio.gather(*map(found.infer, wanted))
        work.cancel()

    assert answers == wanted
    assert sorted(found.served) == sorted(wanted)


async def test_the_real_predictor_puts_short_answers_first_and_when_killed_nothing_is_lost(
    deployment: Deploy, tmp_path: Path
) -> None:
    """Its process knows lengths; the router learns from 130 answers how long each class takes.

    Then four requests that wait are put in order, and it is killed with SIGKILL under load.
    """
    known = prompts(20)
    async with (
        real_predictor(deployment, tmp_path) as real,
        suite(None, real.port) as found,
        asyncio.TaskGroup() as tasks,
    ):
        await real.learn(known)
        work = tasks.create_task(found.work(short_s=0.002, long_s=0.015))
        await asyncio.gather(*map(found.infer, [*known * 6, *known[:10]]))
        before = await found.predictions()
        blocker = tasks.create_task(found.infer("4 blocker"))
        await until(lambda: "4 blocker" in found.served)
        work.cancel()
        last = [tasks.create_task(found.infer(prompt)) for prompt in ("4 0", "4 2", "0 1", "0 3")]

        async def all_predicted() -> bool:
            return await found.predictions() == before + len(last)

        await until(all_predicted)
        found.worker.finish(answered)
        work = tasks.create_task(found.work(short_s=0.001, long_s=0.003))
        await asyncio.gather(blocker, *last)
        assert found.served[-4:] == ["0 1", "0 3", "4 0", "4 2"]

        before = len(found.served)
        calls = [tasks.create_task(found.infer(prompt)) for prompt in known * 6]
        await until(lambda: len(found.served) > before + 30)
        real.process.kill()
        await real.process.wait()
        answers = await asyncio.gather(*calls)
        work.cancel()

    assert before > 0
    assert answers == known * 6
    assert sorted(found.served[before:]) == sorted(known * 6)


async def test_a_choice_by_predicted_tokens_requests_them_of_requests_that_are_served() -> None:
    """No request waits here, and each has its length predicted."""
    async with suite(oracle()) as found, asyncio.TaskGroup() as tasks:
        found.world.planner.discipline = "fcfs"
        await found.world.route(found.worker, choice="predicted_tokens")
        served = tasks.create_task(found.infer("0 1"))
        await until(lambda: bool(found.worker.held))
        await until(lambda: found.oracle.queries == 1)
        found.worker.finish(answered)
        assert await served == "0 1"


async def test_other_disciplines_request_no_predictions() -> None:
    async with suite(oracle()) as found, asyncio.TaskGroup() as tasks:
        found.world.planner.discipline = "fcfs"
        await found.world.route(found.worker)
        work = tasks.create_task(found.work(short_s=0, long_s=0))
        wanted = prompts(20)
        assert await asyncio.gather(*map(found.infer, wanted)) == wanted
        work.cancel()

    assert found.oracle.queries == 0
