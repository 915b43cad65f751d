"""The HTTP surface that clients of Triton, KServe and MLServer use beside plain inference.

Written after their public tests (Triton's qa/L0_http, L0_data_compression and L0_parameters,
MLServer's tests/rest): what they expect of a server, on a router over real sockets.
"""

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from services.kit.net import free_port
from tests.rpc.router.test_every_field import tensors_of
from tests.support.router.router_service import RECEIPT, World, running
from tests.support.worker.batch_families import save

pytestmark = pytest.mark.asyncio(loop_scope="module")

TENSOR: Final = pb.ModelMetadataResponse.TensorMetadata
INFER: Final = "/v2/models/digits/infer"
GENERATE: Final = "/v2/models/digits/generate"
STREAM: Final = "/v2/models/digits/generate_stream"
RAW: Final = {"Inference-Header-Content-Length": "0"}
WORDS: Final = ("What", " is", " the", " capital?")
ROW: Final = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with running(http_listen=f"127.0.0.1:{free_port()}", max_queue=50) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{world.http}", timeout=10) as client:
        yield client


async def network(world: World, folder: Path, text: str, datatype: str, *shape: int) -> None:
    worker = await world.worker("a")
    worker.answer = tensors_of(save(folder / "m.onnx", text))
    worker.metadata = pb.ModelMetadataResponse(
        versions=["1"],
        inputs=[TENSOR(name="x", datatype=datatype, shape=shape)],
        outputs=[TENSOR(name="y", datatype=datatype, shape=shape)],
    )
    await world.route(worker)


@pytest_asyncio.fixture(loop_scope="module")
async def identity(world: World, tmp_path: Path) -> None:
    """A model that returns its input, FP32 [-1, 4]."""
    text = "(float[n,4] x) => (float[n,4] y) { y = Identity(x) }"
    await network(world, tmp_path, text, "FP32", -1, 4)


@pytest_asyncio.fixture(loop_scope="module")
async def language(world: World) -> None:
    """A model that answers in parts: words, of which it repeats as many as `max_tokens` says."""

    def answer(work: worker_pb2.Work) -> worker_pb2.Result | None:
        request = pb.ModelInferRequest.FromString(work.request)
        names = [each.name for each in request.inputs]
        if names != ["text_input"]:
            return worker_pb2.Result(
                id=work.id, status="INVALID_ARGUMENT", message=f"text_input missing, got {names}"
            )
        seen = request.raw_input_contents[0][4:].decode()
        if seen == "fail":
            return worker_pb2.Result(id=work.id, status="INTERNAL", message="An Error Occurred")
        words = WORDS[: request.parameters["max_tokens"].int64_param or None]
        words = (f"{seen}: {words[0]}", *words[1:])
        if not work.in_parts:
            words = ("".join(words),)
        parts = [
            worker_pb2.Result(id=work.id, response=said(request, each), more=each is not words[-1])
            for each in words
        ]
        parts[-1].receipt.CopyFrom(RECEIPT)
        worker.say(*parts)
        return None

    worker = await world.worker("a", answer)
    worker.decoupled = True
    worker.metadata = pb.ModelMetadataResponse(
        versions=["1"],
        inputs=[TENSOR(name="text_input", datatype="BYTES", shape=[1])],
        outputs=[TENSOR(name="text_output", datatype="BYTES", shape=[1])],
    )
    await world.route(worker)


def said(request: pb.ModelInferRequest, text: str) -> bytes:
    data = text.encode()
    response = pb.ModelInferResponse(
        model_name=request.model_name,
        model_version="1",
        id=request.id,
        raw_output_contents=[len(data).to_bytes(4, "little") + data],
    )
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    return response.SerializeToString()


def events(body: str) -> list[dict[str, Any]]:
    lines = [each for each in body.split("\n\n") if each and not each.startswith(":")]
    assert all(each.startswith("data: ") for each in lines)
    return [json.loads(each.removeprefix("data: ")) for each in lines]


# ---- generate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_a_text_is_generated(http: httpx.AsyncClient, language: None, version: str) -> None:
    """Members are inputs, all others parameters; the answer has outputs by name."""
    path = f"/v2/models/digits{version}/generate"
    body = {"text_input": "Q", "id": "42", "parameters": {"max_tokens": 2}, "temperature": None}
    found = await http.post(path, json=body)
    again = await http.post(path, json={"text_input": ["Q"], "max_tokens": 2, "id": ""})

    assert found.status_code == 200
    assert found.headers["content-type"] == "application/json"
    assert found.json()["text_output"] == again.json()["text_output"] == "Q: What is"
    assert (found.json()["id"], found.json()["model_name"]) == ("42", "digits")
    assert "id" not in again.json()
    assert found.headers["cinquefoil-energy-j"] == "3.6"


async def test_a_text_is_generated_in_events(http: httpx.AsyncClient, language: None) -> None:
    found = await http.post(STREAM, json={"text_input": "Q", "id": "7"})
    parts = events(found.text)

    assert found.headers["content-type"].startswith("text/event-stream")
    assert "".join(each["text_output"] for each in parts) == "Q: What is the capital?"
    assert {each["id"] for each in parts} == {"7"}
    assert parts[-1]["parameters"]["energy_j"] == 3.6


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "text_input missing"),
        ({"abc": 123}, 400, "text_input missing"),
        ({"text_input": 123}, 400, "text_input: elements of BYTES must be strings"),
        ({"text_input": True}, 400, "text_input: elements of BYTES must be strings"),
        ({"text_input": [["a"], ["b", "c"]]}, 400, "text_input: "),
        ({"text_input": "a", "id": 5}, 400, "id: must be a string"),
        ({"text_input": "a", "other": [1]}, 400, "other: is no input of the model"),
        ({"text_input": "a", "parameters": 5}, 400, "parameters: must be an object"),
        ({"text_input": "fail"}, 500, "An Error Occurred"),
        ([], 400, "object"),
        ("x", 400, "object"),
    ],
)
async def test_a_generation_that_is_wrong_says_so(  # noqa: PLR0917
    http: httpx.AsyncClient, language: None, path: str, body: Any, status: int, words: str
) -> None:
    """As JSON with a status, also where events were requested."""
    found = await http.post(path, json=body)

    assert found.status_code == status, found.text
    assert found.headers["content-type"].startswith("application/json")
    assert words in found.json()["error"]


@pytest.mark.parametrize("path", [GENERATE, STREAM, INFER])
async def test_an_unknown_model_or_version_is_404(
    http: httpx.AsyncClient, language: None, path: str
) -> None:
    for wrong in ("models/none", "models/digits/versions/9"):
        body = {"text_input": "a", "inputs": [ROW]}
        found = await http.post(path.replace("models/digits", wrong), json=body)
        assert found.status_code == 404
        assert "error" in found.json()


@pytest.mark.parametrize("path", ["generate", "generate_stream", "infer_stream"])
async def test_mlservers_clients_generate_with_tensors(
    http: httpx.AsyncClient, language: None, path: str
) -> None:
    """Its generate and its streams take the requests of infer."""
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Q"]}
    found = await http.post(f"/v2/models/digits/{path}", json={"inputs": [tensor]})
    answers = [found.json()] if path == "generate" else events(found.text)
    texts = [each["outputs"][0]["data"][0] for each in answers]

    assert "".join(texts) == "Q: What is the capital?"
    assert len(texts) == (1 if path == "generate" else 4)


async def test_events_have_no_binary_data_and_errors_of_their_own(
    world: World, http: httpx.AsyncClient
) -> None:
    """An output without a form in JSON is an event with an error: the status has left."""

    def answer(work: worker_pb2.Work) -> worker_pb2.Result:
        request = pb.ModelInferRequest.FromString(work.request)
        response = pb.ModelInferResponse(model_name="digits", raw_output_contents=[b"\1\0\0\0\xff"])
        response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        response.id = request.id
        return worker_pb2.Result(id=work.id, response=response.SerializeToString())

    worker = await world.worker("a", answer)
    texts = [TENSOR(name="text_output", datatype="BYTES", shape=[1])]
    worker.metadata = pb.ModelMetadataResponse(versions=["1"], outputs=texts)
    await world.route(worker)
    binary = {"inputs": [ROW], "parameters": {"binary_data_output": True}}

    refused = await http.post("/v2/models/digits/infer_stream", json=binary)
    streamed = await http.post(STREAM, json={})

    assert refused.status_code == 400
    assert "outputs: binary data cannot be sent as events" in refused.json()["error"]
    assert "its bytes are not UTF-8" in events(streamed.text)[-1]["error"]


async def test_numbers_are_generated_from_numbers(http: httpx.AsyncClient, identity: None) -> None:
    """Lists are nested as the input; several elements come as a list."""
    for given in ([1, 2, 3, 4], [[1, 2, 3, 4]]):
        found = await http.post(GENERATE, json={"x": given})
        assert found.json()["y"] == [1.0, 2.0, 3.0, 4.0], found.text
    ragged = await http.post(GENERATE, json={"x": [[1, 2], [3, 4, 5, 6]]})
    assert ragged.status_code == 400


# ---- raw binary ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
async def test_a_body_is_a_models_only_input(
    http: httpx.AsyncClient, identity: None, rows: int
) -> None:
    """Its type does not matter; the free size is that of the body."""
    data = np.arange(4 * rows, dtype=np.float32).tobytes()
    for kind in ("application/octet-stream", "image/png"):
        found = await http.post(INFER, content=data, headers=RAW | {"Content-Type": kind})
        head = int(found.headers["Inference-Header-Content-Length"])

        assert found.status_code == 200, found.text
        assert found.content[head:] == data
        assert json.loads(found.content[:head])["outputs"][0]["shape"] == [rows, 4]


async def test_a_raw_body_in_chunks_and_one_that_fits_no_shape(
    http: httpx.AsyncClient, identity: None
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield np.arange(2, dtype=np.float32).tobytes()
        yield np.arange(2, dtype=np.float32).tobytes()

    found = await http.post(INFER, content=chunks(), headers=RAW)
    wrong = await http.post(INFER, content=b"12345", headers=RAW)

    assert found.status_code == 200
    assert wrong.status_code == 400
    assert "takes 16 bytes, got 5" in wrong.json()["error"]


async def test_a_raw_text_is_one_element(
    world: World, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    text = "(string[n] x) => (string[n] y) { y = Identity(x) }"
    await network(world, tmp_path, text, "BYTES", -1)
    found = await http.post(INFER, content=b"427", headers=RAW)
    head = int(found.headers["Inference-Header-Content-Length"])

    assert found.content[head:] == b"\3\0\0\0" + b"427"


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([[-1, 4], [-1, 4]], "0 is for models of one input; 'digits' has x0, x1"),
        ([[-1, -1, -1]], "0 is for a shape with one free size; 'x0' has [-1, -1, -1]"),
    ],
)
async def test_a_raw_body_that_could_be_several_things_is_refused(
    world: World, http: httpx.AsyncClient, shapes: list[list[int]], words: str
) -> None:
    worker = await world.worker("a")
    inputs = [
        TENSOR(name=f"x{at}", datatype="FP16", shape=shape) for at, shape in enumerate(shapes)
    ]
    worker.metadata = pb.ModelMetadataResponse(versions=["1"], inputs=inputs, outputs=inputs)
    await world.route(worker)
    found = await http.post(INFER, content=bytes(48), headers=RAW)

    assert found.status_code == 400
    assert words in found.json()["error"]


# ---- lists, descriptions, methods ----------------------------------------------------------------


async def test_models_are_listed_as_kserve_does(http: httpx.AsyncClient, identity: None) -> None:
    assert (await http.get("/v2/models")).json() == {"models": ["digits"]}


async def test_the_address_describes_every_route_it_has(
    http: httpx.AsyncClient, identity: None
) -> None:
    """Each operation has a summary, types of requests resolve, and a page shows them."""
    found = (await http.get("/openapi.json")).json()
    page = await http.get("/v2/docs")
    paths = found["paths"]

    assert found["openapi"] == "3.1.0"
    assert (await http.get("/v2/docs/dataplane.json")).json() == found
    assert {"/v2", INFER.replace("digits", "{model}"), "/v1/chat/completions"} <= paths.keys()
    assert all(each["summary"] for path in paths.values() for each in path.values())
    body = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].rpartition("/")[2] in found["components"]["schemas"]
    refs = {part.split('"')[0] for part in json.dumps(found).split("#/components/schemas/")[1:]}
    assert refs <= found["components"]["schemas"].keys()
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/v2/models/{model}/generate_stream" in page.text
    for path, operations in paths.items():
        for verb in operations:
            place = path.replace("{model}", "digits").replace("{version}", "1")
            answered = await http.request(verb, place.replace("{region}", "r"))
            assert answered.status_code != 405


@pytest.mark.parametrize("version", ["", "/versions/1"])
async def test_a_model_describes_its_own_paths(
    http: httpx.AsyncClient, identity: None, version: str
) -> None:
    found = (await http.get(f"/v2/models/digits{version}/docs/dataplane.json")).json()
    page = await http.get(f"/v2/models/digits{version}/docs")

    assert INFER in found["paths"]
    assert all("digits" in path for path in found["paths"])
    assert "Cinquefoil - digits" in page.text
    assert (await http.get("/v2/models/none/docs")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", INFER, "OPTIONS, POST"),
        ("PUT", INFER, "OPTIONS, POST"),
        ("DELETE", "/v2/models/digits", "GET, HEAD, OPTIONS"),
        ("POST", "/v2/health/live", "GET, HEAD, OPTIONS"),
        ("GET", "/v2/repository/index", "OPTIONS, POST"),
        ("GET", "/v1/chat/completions", "OPTIONS, POST"),
        ("PATCH", "/v2/logging", "GET, HEAD, OPTIONS, POST"),
        ("GET", GENERATE, "OPTIONS, POST"),
    ],
)
async def test_another_method_is_405_and_options_say_which_there_are(
    http: httpx.AsyncClient, identity: None, method: str, path: str, allowed: str
) -> None:
    wrong, options = await http.request(method, path), await http.options(path)

    assert (wrong.status_code, wrong.headers["allow"]) == (405, allowed)
    assert "must be one of" in wrong.text
    assert (options.status_code, options.headers["allow"], options.content) == (204, allowed, b"")
    assert (await http.options("/nothing")).status_code == 404


async def test_heads_are_answered_as_gets(http: httpx.AsyncClient, identity: None) -> None:
    for path in ("/v2/health/ready", "/v2", "/v2/models/digits"):
        found = await http.head(path)
        assert (found.status_code, found.content) == (200, b"")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("application/cloudevents+json", 200),
        ("application/octet-stream", 200),
        ("text/plain", 200),
        ("multipart/form-data; boundary=x", 415),
        ("text/xml", 415),
        ("image/png", 415),
        ("application/x-protobuf", 415),
    ],
)
async def test_a_body_of_another_type_is_415(
    http: httpx.AsyncClient, identity: None, kind: str, status: int
) -> None:
    content = json.dumps({"inputs": [ROW]})
    found = await http.post(INFER, content=content, headers={"Content-Type": kind})

    assert found.status_code == status
    assert status == 200 or "must be application/json" in found.json()["error"]


# ---- compression, headers ------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("br, deflate;q=0.5", "deflate"),
        ("gzip;q=0, identity", ""),
        ("identity", ""),
        ("", ""),
    ],
)
async def test_large_answers_are_compressed_as_the_client_accepts(
    http: httpx.AsyncClient, identity: None, accepted: str, coding: str, binary: bool
) -> None:
    """Binary tensors only for clients that accept nothing else; small answers never."""
    tensor = ROW | {"shape": [400, 4], "data": [1.0, 2.0, 3.0, 4.0] * 400}
    body = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    headers = {"Accept-Encoding": accepted}
    async with http.stream("POST", INFER, json=body, headers=headers) as found:
        raw = b"".join([each async for each in found.aiter_raw()])
    small = await http.post(INFER, json={"inputs": [ROW | {"data": [1] * 4}]}, headers=headers)

    if binary and "," in accepted:
        coding = ""
    assert found.headers.get("content-encoding", "") == coding
    assert found.headers["vary"] == "Accept-Encoding"
    plain = gzip.decompress(raw) if coding == "gzip" else raw
    plain = zlib.decompress(raw) if coding == "deflate" else plain
    size = int(found.headers.get("Inference-Header-Content-Length", 0)) or None
    assert json.loads(plain[:size])["outputs"][0]["shape"] == [400, 4]
    assert "content-encoding" not in small.headers


async def test_answers_have_the_headers_of_mlservers(
    http: httpx.AsyncClient, identity: None
) -> None:
    named = await http.post(INFER, json={"inputs": [ROW], "id": "mine"})
    nameless = await http.post(INFER, json={"inputs": [ROW]})
    forged = await http.post(INFER, json={"inputs": [ROW], "id": "a\r\nX-Forged: 1"})

    assert named.headers["Ce-Specversion"] == nameless.headers["Ce-Specversion"] == "0.3"
    assert named.headers["Ce-Type"] == "io.seldon.serving.inference.response"
    assert (named.headers["Ce-Id"], named.headers["Ce-Modelid"]) == ("mine", "digits")
    assert "Ce-Id" not in nameless.headers
    assert forged.status_code == 200
    assert "Ce-Id" not in forged.headers
    assert "x-forged" not in forged.headers
