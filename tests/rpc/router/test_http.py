"""The Open Inference Protocol over HTTP: unmodified clients and wrong ones, over real sockets."""

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from services.kit.http import slow_clients
from services.kit.net import free_port, split_address
from tests.support.paths import SUPPORT
from tests.support.router.router_client import queued
from tests.support.router.router_service import World, running
from tests.support.waiting import until

PROGRAM = SUPPORT / "router/triton_http_calls.py"
INFER = "/v2/models/digits/infer"
ROW = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


def document(**changes: Any) -> dict[str, Any]:
    """The JSON document of a request for one row, its tensor changed."""
    return {"inputs": [ROW | changes]}


async def open_http(world: World) -> httpx.AsyncClient:
    return await world.stack.enter_async_context(
        httpx.AsyncClient(base_url=f"http://{world.http}", timeout=10)
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A router with one worker, and an HTTP address."""
    async with running(http_listen=f"127.0.0.1:{free_port()}", max_request_bytes=8192) as world:
        await world.route(await world.worker("a"))
        yield world


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Everything Triton's client saw; one process for all tests, as importing it takes a second."""
    return asyncio.run(look())


async def look() -> dict[str, Any]:
    async with running(
        http_listen=f"127.0.0.1:{free_port()}", max_request_bytes=8192, max_queue=8
    ) as world:
        await world.route(await world.worker("a"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, PROGRAM, world.http),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        found: dict[str, Any] = json.loads(output)
        return found


def test_tritonclient_reads_health_metadata_and_configuration(seen: dict[str, Any]) -> None:
    assert seen["live"]
    assert seen["ready"]
    assert seen["model ready"]
    assert seen["server"]["name"] == "cinquefoil"
    assert seen["metadata"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert seen["config"]["max_batch_size"] == 4
    stated = {"name": "x", "data_type": "TYPE_FP32", "dims": [4], "format": "FORMAT_NONE"}
    assert seen["config"]["input"][0].items() >= stated.items(), "defaults included, as Triton's"
    assert seen["index"] == [{"name": "digits", "version": "1", "state": "READY", "reason": ""}]
    assert seen["log"]["log_verbose_level"] == 0
    assert seen["regions"] == []


@pytest.mark.parametrize("form", ["json", "binary", "mixed", "compressed"])
def test_tritonclient_infers_with_tensors_in_every_form(seen: dict[str, Any], form: str) -> None:
    assert seen[form]["output"] == [10.0]
    assert seen[form]["response"]["id"] == "mine"
    assert seen[form]["response"]["parameters"]["model_variant"] == "variant-a"
    assert seen[form]["response"]["parameters"]["energy_j"] == 3.6


def test_tritonclient_reads_statistics(seen: dict[str, Any]) -> None:
    (model,) = seen["statistics"]["model_stats"]

    assert model["inference_count"] == 4
    assert model["inference_stats"]["success"]["count"] == 4


@pytest.mark.parametrize(
    ("mistake", "status", "words"),
    [
        ("unknown model", "404", "no model 'nothing'; models are digits"),
        ("wrong shape", "400", "input 'x' has shape [-1, 4], got [1, 3]"),
        ("oversized", "413", "router.max_request_bytes allows 8192"),
        ("load", "400", "the planner decides what runs"),
        ("log", "400", "cannot change log_verbose_level"),
        ("memory", "501", "send tensors in the request"),
    ],
)
def test_tritonclient_gets_clear_errors(
    seen: dict[str, Any], mistake: str, status: str, words: str
) -> None:
    found, message = seen["wrong"][mistake]

    assert found == status
    assert words in message


async def test_a_request_that_requires_an_accuracy_is_answered_by_nothing_less(
    world: World,
) -> None:
    """The accurate worker has no share in the plan, and still is the one that is used."""
    cheap, accurate = await world.worker("a"), await world.worker("b")
    accurate.accuracy = 0.97
    await world.route(cheap, accurate, shares=(1.0, 0.0))
    http = await open_http(world)

    async def infer(**parameters: Any) -> httpx.Response:
        return await http.post(INFER, json=document() | {"parameters": parameters})

    plain, choosy = await infer(), await infer(accuracy_floor=0.95)
    refused, wrong = await infer(accuracy_floor=0.99), await infer(accuracy_floor="best")

    assert plain.json()["parameters"]["accuracy"] == 0.9
    assert choosy.json()["parameters"]["accuracy"] == 0.97
    assert refused.status_code == wrong.status_code == 400
    assert "variant-a has 0.9, variant-b has 0.97" in refused.json()["error"]
    assert "accuracy_floor must be a number of at least 0" in wrong.json()["error"]


async def test_curl_gets_an_answer_with_its_receipt_in_headers(world: World) -> None:
    """Curl's own content type is a form's; Triton accepts it, and so does the router."""
    curl = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--include", "--data", json.dumps(document(data=[[1, 2, 3, 4]]))),
        f"http://{world.http}{INFER}",
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await curl.communicate()
    head, _, body = output.decode().partition("\r\n\r\n")

    assert head.startswith("HTTP/1.1 200")
    assert "cinquefoil-variant: variant-a" in head
    assert "cinquefoil-energy-j: 3.6" in head
    assert "cinquefoil-carbon-gco2e: 0.0015" in head
    assert "cinquefoil-plan: 7" in head
    assert json.loads(body)["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1], "data": [10.0]}
    ]


async def test_clients_of_kserves_first_protocol_get_predictions_and_readiness(
    world: World,
) -> None:
    """The two calls that its Python client makes by default."""
    http = await open_http(world)
    answer = await http.post("/v1/models/digits:predict", json={"instances": [[1, 2, 3, 4]] * 2})
    ready, models = await http.get("/v1/models/digits"), await http.get("/v1/models")
    wrong = await http.post("/v1/models/digits:predict", json={"instances": [[1, 2]]})
    missing = await http.post("/v1/models/nothing:predict", json={"instances": [1]})

    assert answer.json() == {"predictions": [10.0, 10.0]}
    assert answer.headers["cinquefoil-energy-j"] == "3.6"
    assert ready.json() == {"name": "digits", "ready": True}
    assert models.json()["models"] == ["digits"]
    assert (wrong.status_code, missing.status_code) == (400, 404)
    assert "[-1, 4], got [1, 2]" in wrong.json()["error"]


async def test_a_wrong_request_is_refused_with_the_place_of_the_mistake(world: World) -> None:
    http = await open_http(world)
    unreadable = await http.post(INFER, content=b'{"inputs": ')
    short = await http.post(INFER, json=document(data=[1, 2, 3]))
    size = await http.post(
        INFER, json=document(), headers={"Inference-Header-Content-Length": "all"}
    )
    timeout = await http.post(INFER, json=document(), headers={"cinquefoil-timeout-s": "-1"})

    assert {each.status_code for each in (unreadable, short, size, timeout)} == {400}
    assert "the body is not JSON" in unreadable.json()["error"]
    assert "inputs[0] ('x'): shape [1, 4] has 4 elements" in short.json()["error"]
    assert "must be a number of bytes" in size.json()["error"]
    assert "must be a number of seconds above 0" in timeout.json()["error"]


async def test_binary_outputs_follow_the_json_document(world: World) -> None:
    http = await open_http(world)
    body = document() | {"parameters": {"binary_data_output": True}}
    answer = await http.post(INFER, json=body)
    size = int(answer.headers["Inference-Header-Content-Length"])

    assert json.loads(answer.content[:size])["outputs"][0]["parameters"] == {"binary_data_size": 4}
    assert np.frombuffer(answer.content[size:], np.float32).tolist() == [10.0]


async def test_a_request_past_its_deadline_gets_504(world: World) -> None:
    await world.route(await world.worker("idle", lambda _: None))
    http = await open_http(world)
    late = await http.post(INFER, json=document(), headers={"cinquefoil-timeout-s": "0.05"})

    assert late.status_code == 504
    assert late.headers["cinquefoil-status"] == "DEADLINE_EXCEEDED"


async def test_overload_gets_429_and_when_to_try_again(world: World) -> None:
    worker = await world.worker("idle", lambda _: None, credits_=1)
    await world.route(worker)
    http = await open_http(world)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(http.post(INFER, json=document())) for _ in range(4)]
        await queued(world, 3)
        refused = await http.post(INFER, json=document())
        for task in waiting:
            task.cancel()

    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1


async def test_a_client_that_goes_frees_its_place(world: World) -> None:
    """The router withdraws its request from the worker."""
    worker = await world.worker("idle", lambda _: None)
    await world.route(worker)
    http = await open_http(world)
    answering = asyncio.create_task(http.post(INFER, json=document()))
    await until(lambda: bool(worker.held))
    answering.cancel()

    await until(lambda: worker.cancelled == [worker.held[0].id])


async def test_web_pages_are_refused_where_callers_have_no_identity(world: World) -> None:
    http = await open_http(world)
    refused = await http.post(INFER, json=document(), headers={"Origin": "http://a.example"})

    assert refused.status_code == 403
    assert "web pages" in refused.json()["error"]


async def test_an_unknown_path_names_itself(world: World) -> None:
    http = await open_http(world)
    refused = await http.get("/v2/model/digits")

    assert refused.status_code == 404
    assert "no GET /v2/model/digits" in refused.json()["error"]


async def test_bodies_without_a_length_are_bounded_too(world: World) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(4096)

    http = await open_http(world)
    refused = await http.post(INFER, content=pieces())

    assert refused.status_code == 413


async def test_a_request_without_head_end_does_not_keep_the_router_from_stopping(
    world: World,
) -> None:
    _, writer = await asyncio.open_connection(*split_address(world.http))
    writer.write(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: a")
    await writer.drain()
    world.stop.set()

    async with asyncio.timeout(5):
        await asyncio.shield(world.task)
    writer.close()


@pytest.mark.parametrize(
    ("encoding", "sent", "status", "words"),
    [
        ("gzip", b"none", 400, "the body is not gzip"),
        ("deflate", b"\xff\xff", 400, "the body is not deflate"),
        ("gzip", gzip.compress(bytes(99), mtime=0)[:-9], 400, "the body ends within its gzip data"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"x", 400, "bytes follow the body's gzip data"),
        ("gzip", gzip.compress(bytes(2**20), mtime=0), 413, "router.max_request_bytes allows 8192"),
        ("br", b"none", 415, "gzip and deflate are understood"),
    ],
)
async def test_a_compressed_body_is_read_as_far_as_it_may_be(
    world: World, encoding: str, sent: bytes, status: int, words: str
) -> None:
    """Each mistake has its status and its sentence, and the connection keeps serving."""
    http = await open_http(world)
    refused = await http.post(INFER, content=sent, headers={"Content-Encoding": encoding})
    raw = zlib.compressobj(wbits=-15)
    packed = raw.compress(json.dumps(document()).encode()) + raw.flush()
    answered = await http.post(INFER, content=packed, headers={"Content-Encoding": "deflate"})

    assert refused.status_code == status
    assert words in refused.json()["error"]
    assert answered.status_code == 200


@pytest.mark.parametrize(
    ("headers", "changes", "words"),
    [
        ({"Inference-Header-Content-Length": "9" * 5000}, {}, "must be a number of bytes"),
        ({"cinquefoil-timeout-s": "9" * 5000}, {}, "must be a number of seconds"),
        ({}, {"shape": [2**70]}, "inputs[0].shape"),
        ({}, {"shape": [2**62, 2**62, 0]}, "inputs[0].shape"),
        ({}, {"shape": [1] * 65}, "inputs[0].shape"),
        ({}, {"parameters": {"binary_data_size": 2**70}, "data": None}, "inputs[0] ('x')"),
        ({}, {"parameters": {"n": 2**70}}, "inputs[0].parameters.n"),
    ],
)
async def test_numbers_beyond_all_bounds_are_refused_by_their_place(
    world: World, headers: dict[str, str], changes: dict[str, Any], words: str
) -> None:
    http = await open_http(world)
    refused = await http.post(INFER, json=document(**changes), headers=headers)

    assert refused.status_code == 400
    assert words in refused.json()["error"]


DAMAGED: dict[str, tuple[bytes, bytes]] = {
    "a length of 5,000 digits": (b"Content-Length: " + b"9" * 5000, b""),
    "a length of 2^70": (b"Content-Length: 1180591620717411303424", b""),
    "a chunk of 2^70": (b"Transfer-Encoding: chunked", b"400000000000000000\r\nx"),
    "a damaged chunk": (b"Transfer-Encoding: chunked", b"zz\r\nx\r\n"),
    "half a character": (b"Content-Length: 4", b"\xff\xfe\x00\xd8"),
    "an unknown character set": (
        b"Content-Type: application/json; charset=nope\r\nContent-Length: 4",
        b"null",
    ),
    "depth": (b"Content-Length: 5000", b"[" * 5000),
    "an empty gzip": (b"Content-Encoding: gzip\r\nContent-Length: 0", b""),
}


@pytest.mark.parametrize("damage", DAMAGED)
async def test_a_damaged_request_is_answered_as_the_client_s_fault(
    world: World, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with 500, not with silence, and not with a traceback in the log."""
    headers, content = DAMAGED[damage]
    reader, writer = await asyncio.open_connection(*split_address(world.http))
    writer.write(b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: a\r\n" + headers)
    writer.write(b"\r\n\r\n" + content)
    async with asyncio.timeout(45):
        status = await reader.readline()
    writer.close()

    assert status.split()[1].startswith(b"4"), status
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("number", ["1e400", "9" * 5000])
async def test_a_number_that_no_double_holds_is_refused(world: World, number: str) -> None:
    text = json.dumps(document(datatype="FP64", data=[7]) | {"parameters": {"p": 8}})
    http = await open_http(world)
    data = await http.post(INFER, content=text.replace("[7]", f"[{number}]").encode())
    parameter = await http.post(INFER, content=text.replace("8", number).encode())

    assert data.status_code == parameter.status_code == 400


async def test_a_body_that_only_trickles_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece comes in time, all of them too slowly."""
    monkeypatch.setattr(slow_clients, "_BODY_S", 0.3)

    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" "
            await asyncio.sleep(0.02)

    http = await open_http(world)
    refused = await http.post(INFER, content=trickle())

    assert refused.status_code == 504
    assert "fewer than" in refused.json()["error"]


async def test_quotas_count_every_call_but_those_of_load_balancers() -> None:
    quotas = {"*": {"rate_rps": 0.01, "burst": 3}}
    async with running(http_listen=f"127.0.0.1:{free_port()}", quotas=quotas) as world:
        await world.route(await world.worker("a"))
        http = await open_http(world)
        probes = [await http.get("/v2/health/live") for _ in range(5)]
        calls = [
            await http.get("/v2"),
            await http.post(INFER, content=b"no JSON"),
            await http.get("/v1/models"),
            await http.get("/v2/models/digits"),
        ]

    assert {each.status_code for each in probes} == {200}
    assert [each.status_code for each in calls] == [200, 400, 200, 429]
