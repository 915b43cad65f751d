"""Workers whose decoupled model another server of the Open Inference Protocol runs, by stream."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2 as oip
from services.gpuagent.core.worker_spec import WorkerSpec
from services.kit.config import ExternalRuntime
from tests.support.paths import SUPPORT
from tests.support.worker.worker_process import output, routed, work, worker, worker_spec

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = SUPPORT / "oip_server.py"


def counting(n: int, *, marked: bool = True, datatype: str = "FP32") -> oip.ModelInferRequest:
    """Return a request for the numbers 1 to n; marked: the server says which is the last."""
    request = oip.ModelInferRequest(model_name="m", id=f"count-{n}")
    request.inputs.add(name="x", datatype=datatype, shape=[1, 2])
    request.raw_input_contents.append(np.array([n, marked], np.float32).tobytes())
    return request


class Stream:
    """A router's end of one Execute stream, with results in order."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.results: list[pb.Result] = []

    async def send(self, *works: pb.Work, cancelled: tuple[int, ...] = ()) -> None:
        await self._call.write(pb.ExecuteRequest(work=works, cancelled_ids=cancelled))

    async def until(self, enough: Callable[[list[pb.Result]], bool]) -> list[pb.Result]:
        while not enough(self.results):
            self.results += (await self._call.read()).results
        return self.results

    async def infer(self, request: oip.ModelInferRequest) -> list[pb.Result]:
        await self.send(work(1, request))
        return await self.until(lambda results: bool(results) and not results[-1].more)


@asynccontextmanager
async def counting_worker(folder: Path) -> AsyncIterator[WorkerSpec]:
    """Run a worker of the counter; a word in the folder's file "fault" is the server's fault."""
    command = (sys.executable, str(SERVER), "{port}", str(folder / "fault"))
    runtime = ExternalRuntime(kind="external", command=command, model_name="counter")
    spec = worker_spec(folder, folder / "no-file", runtime=runtime)
    async with worker(spec), routed(spec.listen) as router:
        assert router.hello.decoupled
        yield spec


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerSpec]:
    """A worker and its server for the tests that do not end them."""
    async with counting_worker(tmp_path_factory.mktemp("counter")) as spec:
        yield spec


@pytest_asyncio.fixture(loop_scope="module")
async def stream(shared: WorkerSpec) -> AsyncIterator[Stream]:
    """A stream to the shared worker."""
    async with routed(shared.listen) as router:
        yield Stream(router.call)


@pytest.fixture
def misbehave(shared: WorkerSpec) -> Iterator[Callable[[str], object]]:
    """Set the fault of the shared server; "": none."""
    file = shared.ledger.with_name("fault")
    yield file.write_text
    file.unlink(missing_ok=True)


def numbers(results: list[pb.Result]) -> list[float]:
    return [output(result.response, "y")[0] for result in results if result.response]


@pytest.mark.parametrize("marked", [True, False])
async def test_parts_come_one_by_one_and_the_last_has_the_receipt(
    stream: Stream, marked: bool
) -> None:
    """Where the server does not mark its last answer, an empty result ends the work."""
    results = await stream.infer(counting(3, marked=marked))

    assert numbers(results) == [1.0, 2.0, 3.0]
    assert [result.more for result in results] == [True] * (2 if marked else 3) + [False]
    assert [result.HasField("receipt") for result in results] == [
        not result.more for result in results
    ]
    answer = oip.ModelInferResponse.FromString(results[0].response)
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "count-3")


@pytest.mark.parametrize(("says", "tokens"), [("text", (0, 3)), ("tokens", (5, 6))])
async def test_a_streamed_text_has_its_tokens_in_its_receipt(
    stream: Stream, says: str, tokens: tuple[int, int]
) -> None:
    """Tokens are those that the server states; otherwise each part with text is one."""
    request = counting(3)
    for name in {"text", says}:
        request.parameters[name].bool_param = True
    *_, last = await stream.infer(request)

    assert (last.receipt.input_tokens, last.receipt.output_tokens) == tokens
    assert last.receipt.first_token_s > 0
    assert last.receipt.token_s >= 0


async def test_a_stream_without_text_has_no_tokens(stream: Stream) -> None:
    *_, last = await stream.infer(counting(3))

    assert last.receipt.output_tokens == 0


async def test_a_request_without_answers_has_one_empty_result(stream: Stream) -> None:
    (result,) = await stream.infer(counting(0))

    assert (result.status, result.response, result.more) == ("", b"", False)


async def test_several_requests_of_a_batch_stream_at_the_same_time(stream: Stream) -> None:
    await stream.send(*(work(number, counting(20)) for number in (1, 2)))
    results = await stream.until(lambda results: sum(not result.more for result in results) == 2)

    for number in (1, 2):
        mine = [result for result in results if result.id == number]
        assert numbers(mine) == list(map(float, range(1, 21)))


async def test_errors_keep_their_status_before_and_after_parts(
    stream: Stream, misbehave: Callable[[str], object]
) -> None:
    (wrong,) = await stream.infer(counting(3, datatype="FP64"))
    stream.results.clear()
    misbehave("fail")
    part, failed = await stream.infer(counting(3))

    assert (wrong.status, wrong.message) == ("INVALID_ARGUMENT", "x takes FP32")
    assert part.more
    assert (failed.status, failed.message) == ("INTERNAL", "CUDA error")


async def test_an_endless_answer_ends_when_its_caller_goes(
    stream: Stream, misbehave: Callable[[str], object]
) -> None:
    """The worker stops its request at the server, and is free for the next one."""
    misbehave("never")
    await stream.send(work(1, counting(1)))
    await stream.until(lambda results: len(results) > 10)
    await stream.send(cancelled=(1,))
    results = await stream.until(lambda results: not results[-1].more)
    assert results[-1].status == "CANCELLED"

    misbehave("")
    stream.results.clear()
    assert numbers(await stream.infer(counting(2))) == [1.0, 2.0]


async def test_a_server_that_dies_in_the_middle_is_reported_as_unavailable(tmp_path: Path) -> None:
    (tmp_path / "fault").write_text("die")
    async with counting_worker(tmp_path) as spec, routed(spec.listen) as router:
        part, ended = await Stream(router.call).infer(counting(3))

    assert part.more
    assert ended.status == "UNAVAILABLE"
