"""Every field of a request over both protocols: left out, null, without effect, effective, wrong.

A router over real sockets; its worker reads requests with the worker's own code, and answers with
what it has read.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.generative import prompts
from services.gpuagent.worker.onnx_engine import Engine
from services.gpuagent.worker.providers import CPU
from services.kit.config import GenerativeRuntime
from services.kit.errors import ServiceError
from services.kit.net import free_port
from tests.support.router.router_service import RECEIPT, World, running
from tests.support.worker.batch_families import save

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIME: Final = GenerativeRuntime(kind="generative", context_tokens=128, max_tokens=32)
IDENTITY: Final = "(float[n,4] x) => (float[n,4] y) { y = Identity(x) }"
TENSOR: Final = pb.ModelMetadataResponse.TensorMetadata
KINDS: Final = {str: "string_param", bool: "bool_param", int: "int64_param", float: "double_param"}


class Field(NamedTuple):
    """A parameter. Attributes: name, harmless (change nothing), effective, wrong (refused)."""

    name: str
    harmless: tuple[Any, ...] = ()
    effective: tuple[Any, ...] = ()
    wrong: tuple[Any, ...] = ()


TEXT: Final = (
    Field("max_tokens", (32,), (5,), (0, -1, 129, 1.5, "5", True)),
    Field("temperature", (), (0.0, 1, 2.0), (-0.1, 2.1, "0")),
    Field("top_p", (), (0.5, 1.0), (0.0, 1.1, "x")),
    Field("seed", (), (0, 7), (-1, 1.5, "7")),
    Field("stop", (), ("a",), ("", 5, "x" * 257)),
    Field("stop_sequences", ("[]",), ('["a", "b"]',), ("a", "{}", 5)),
    Field("chat", (True,), (False,), (1, "yes")),
    Field("messages", ("[]",), ('[{"role": "user", "content": "a"}]',), ("x", 5, '[{"role": 1}]')),
    Field("n", (1,), (), (2, 0, "1")),
    Field("best_of", (1,), (), (2,)),
    Field("top_k", (-1, 0), (), (1, 40)),
    Field("min_p", (0.0, 0), (), (0.1,)),
    Field("frequency_penalty", (0, 0.0), (), (0.5, -1)),
    Field("presence_penalty", (0, 0.0), (), (0.5,)),
    Field("repetition_penalty", (1, 1.0), (), (1.2,)),
    Field("length_penalty", (1.0,), (), (0.5,)),
    Field("min_tokens", (0,), (), (4,)),
    Field("logprobs", (False,), (), (True, 5, 0)),
    Field("echo", (False,), (), (True,)),
    Field("ignore_eos", (False,), (), (True,)),
    Field("skip_special_tokens", (True,), (), (False,)),
    Field("use_beam_search", (False,), (), (True,)),
    Field("exclude_input_in_output", (True,), (), (False,)),
    Field("return_num_output_tokens", (False,), (), (True,)),
    Field("stream", (True, False), (), ("yes",)),
    Field("user", ("me",)),
    Field("logit_bias", (), (), ('{"5": 1}',)),
    Field("max_token", (), (), (5,)),
    Field("temprature", (), (), (0.5,)),
)
ROUTED: Final = (
    Field("timeout", (0, 60_000_000), (), (-5, "5", 1.5, True)),
    Field("priority", (0, 1), (), (-1, "1", 0.5)),
    Field("accuracy_floor", (0, 0.5), (), (-0.5, "best")),
)


def text_read(work: worker_pb2.Work) -> worker_pb2.Result:
    """Answer with the prompt as the worker has read it."""
    try:
        found = prompts.read(work.request, RUNTIME, 128)
    except ServiceError as error:
        return worker_pb2.Result(id=work.id, status=error.status, message=error.message)
    seen = replace(found, inference=None)  # type: ignore[arg-type]
    return worker_pb2.Result(
        id=work.id,
        response=found.answer(repr(seen).encode(), finish_reason="stop"),
        receipt=RECEIPT,
    )


class Answered(NamedTuple):
    """An answer. Attributes: status, said (what was read, or the error's message)."""

    status: str
    said: str


class Clients:
    """Clients of both protocols."""

    def __init__(self, world: World, http: httpx.AsyncClient) -> None:
        self._stub = GRPCInferenceServiceStub(world.channel)
        self._http = http

    async def text(self, protocol: str, parameters: Mapping[str, Any]) -> Answered:
        inputs = [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}]
        if protocol == "http":
            body = {"inputs": inputs, "parameters": parameters}
            found = await self._http.post("/v2/models/digits/infer", json=body)
            answer = found.json()
            if found.status_code != 200:
                return Answered(found.headers["cinquefoil-status"], answer["error"])
            return Answered("OK", answer["outputs"][0]["data"][0])
        request = pb.ModelInferRequest(model_name="digits")
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(b"\2\0\0\0Hi")
        for name, value in parameters.items():
            request.parameters[name].SetInParent()
            if value is not None:
                setattr(request.parameters[name], KINDS[type(value)], value)
        return await self.infer(request)

    async def infer(self, request: pb.ModelInferRequest) -> Answered:
        try:
            answer = await self._stub.ModelInfer(request)
        except grpc.aio.AioRpcError as error:
            return Answered(error.code().name, error.details() or "")
        return Answered("OK", answer.raw_output_contents[0][4:].decode())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with running(http_listen=f"127.0.0.1:{free_port()}") as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def clients(world: World) -> AsyncIterator[Clients]:
    worker = await world.worker("a")
    worker.answer = text_read
    worker.metadata = pb.ModelMetadataResponse(
        versions=["1"],
        inputs=[TENSOR(name="text_input", datatype="BYTES", shape=[1])],
        outputs=[TENSOR(name="text_output", datatype="BYTES", shape=[1])],
    )
    await world.route(worker)
    async with httpx.AsyncClient(base_url=f"http://{world.http}", timeout=10) as http:
        yield Clients(world, http)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_every_field_of_a_text_is_done_or_refused_by_its_name(
    clients: Clients, protocol: str
) -> None:
    """Null and what changes nothing are as if left out; nothing is passed over in silence."""
    plain = await clients.text(protocol, {})
    assert plain.status == "OK"
    for field in (*TEXT, *ROUTED):
        for value in (None, *field.harmless):
            assert await clients.text(protocol, {field.name: value}) == plain, (field.name, value)
        for value in field.effective:
            found = await clients.text(protocol, {field.name: value})
            assert found.status == "OK", found
            assert found.said != plain.said, (field.name, value)
        for value in field.wrong:
            found = await clients.text(protocol, {field.name: value})
            assert found.status == "INVALID_ARGUMENT", (field.name, value, found)
            assert field.name in found.said


async def test_both_protocols_read_the_same(clients: Clients) -> None:
    for field in TEXT:
        for value in (*field.harmless, *field.effective, *field.wrong):
            over = [await clients.text(each, {field.name: value}) for each in ("grpc", "http")]
            assert over[0] == over[1], (field.name, value)


# ---- tensors -----------------------------------------------------------------------------------


def tensors_of(file: Path) -> Any:
    engine = Engine(file, CPU)

    def answer(work: worker_pb2.Work) -> worker_pb2.Result:
        try:
            read = tensor_messages.parse(work.request, engine.signature)
            body = tensor_messages.response(read, engine.signature, engine.run(read.feeds))
        except ServiceError as error:
            return worker_pb2.Result(id=work.id, status=error.status, message=error.message)
        return worker_pb2.Result(id=work.id, response=body, receipt=RECEIPT)

    return answer


@pytest_asyncio.fixture(loop_scope="module")
async def network(world: World, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    worker = await world.worker("a")
    worker.answer = tensors_of(save(tmp_path / "m.onnx", IDENTITY))
    worker.metadata = pb.ModelMetadataResponse(
        versions=["1"],
        inputs=[TENSOR(name="x", datatype="FP32", shape=[-1, 4])],
        outputs=[TENSOR(name="y", datatype="FP32", shape=[-1, 4])],
    )
    await world.route(worker)
    async with httpx.AsyncClient(base_url=f"http://{world.http}", timeout=10) as http:
        yield http


ROWS: Final = [[1.0, 5.0, 10.0, 4.0], [2.5, -1.0, 2.5, 0.0]]
ROW_X: Final = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS}


def message(**output: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="digits")
    request.inputs.add(name="x", datatype="FP32", shape=[2, 4])
    request.raw_input_contents.append(np.array(ROWS, np.float32).tobytes())
    wanted = request.outputs.add(name="y")
    for name, value in output.items():
        wanted.parameters[name].SetInParent()
        if value is not None:
            setattr(wanted.parameters[name], KINDS[type(value)], value)
    return request


async def test_classes_are_the_highest_values_as_triton_writes_them(
    world: World, network: httpx.AsyncClient
) -> None:
    """Value and index; equal ones by index; without a number, the values themselves."""
    stub = GRPCInferenceServiceStub(world.channel)
    best = ["10.000000:2", "5.000000:1", "2.500000:0", "2.500000:2"]
    body = {"inputs": [ROW_X], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}

    answer = await stub.ModelInfer(message(classification=2))
    (found,) = (await network.post("/v2/models/digits/infer", json=body)).json()["outputs"]
    raw = answer.raw_output_contents[0]
    all_of_them = await stub.ModelInfer(message(classification=9))

    assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == ("BYTES", [2, 2])
    assert raw == b"".join(len(each).to_bytes(4, "little") + each.encode() for each in best)
    assert (found["datatype"], found["shape"], found["data"]) == ("BYTES", [2, 2], best)
    assert list(all_of_them.outputs[0].shape) == [2, 4]
    for without in (message(), message(classification=0), message(classification=None)):
        plain = await stub.ModelInfer(without)
        assert plain.outputs[0].datatype == "FP32"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"classification": -1},
        {"classification": "2"},
        {"classification": 1.5},
        {"shared_memory_region": "r", "shared_memory_byte_size": 32},
        {"shared_memory_byte_size": 32},
    ],
)
async def test_outputs_that_cannot_be_had_are_refused_by_name(
    world: World, network: httpx.AsyncClient, protocol: str, parameters: dict[str, Any]
) -> None:
    """No region is registered, so that none can be the place of an answer, or of an input."""
    if protocol == "http":
        outputs = [{"name": "y", "parameters": parameters}]
        body = {"inputs": [ROW_X], "outputs": outputs}
        found = await network.post("/v2/models/digits/infer", json=body)
        status, said = found.headers["cinquefoil-status"], found.json()["error"]
    else:
        stub = GRPCInferenceServiceStub(world.channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.ModelInfer(message(**parameters))
        status, said = raised.value.code().name, raised.value.details() or ""

    assert status == "INVALID_ARGUMENT"
    assert said.startswith(f"outputs[0].parameters.{min(parameters)}: ") or "_region: " in said


async def test_elements_in_two_fields_or_another_are_refused(
    world: World, network: httpx.AsyncClient
) -> None:
    stub = GRPCInferenceServiceStub(world.channel)
    two, other = (
        pb.ModelInferRequest(model_name="digits"),
        pb.ModelInferRequest(model_name="digits"),
    )
    for request in (two, other):
        request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        request.inputs[0].contents.int_contents.extend([1, 2, 3, 4])
    two.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])

    for request in (two, other):
        with pytest.raises(grpc.aio.AioRpcError, match="fp32_contents, and in that field only"):
            await stub.ModelInfer(request)


@pytest.mark.parametrize(
    "data",
    [
        [ROWS[0][:3], [*ROWS[1], 1.0]],
        [ROWS[0] + ROWS[1][:1], ROWS[1][1:]],
        [[ROWS[0]], [ROWS[1]]],
        [*ROWS[0], ROWS[1]],
        [[1.0, 5.0], [10.0, 4.0], [2.5, -1.0], [2.5, 0.0]],
    ],
)
async def test_ragged_lists_are_refused(network: httpx.AsyncClient, data: list[Any]) -> None:
    body = {"inputs": [ROW_X | {"data": data}]}
    found = await network.post("/v2/models/digits/infer", json=body)

    assert found.status_code == 400
    assert "nested as shape [2, 4]" in found.json()["error"] or "elements" in found.json()["error"]
