"""grpcurl, a client written in Go, against a real router: by reflection, with the .proto files."""

import asyncio
import base64
import json
import re
import shutil
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.router.router_service import World, running

GRPCURL = shutil.which("grpcurl", path=str(Path(sys.executable).parent))
PROTOS = ROOT / "protos"
SERVICE = "inference.GRPCInferenceService"
BY_FILE = ("-import-path", str(PROTOS), "-proto", "inference/grpc_service.proto")

pytestmark = pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not beside this Python")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running(max_queue=8) as made:
        await made.route(await made.worker("a"))
        yield made


async def grpcurl(world: World, *arguments: str, call: str = "", data: Any = None) -> str:
    """Return what grpcurl prints; `data`: messages to send."""
    assert GRPCURL is not None
    sent = ("-d", "".join(map(json.dumps, data))) if data is not None else ()
    process = await asyncio.create_subprocess_exec(
        GRPCURL, "-plaintext", *arguments, *sent, world.address, *([call] if call else []),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return output.decode()


def messages(output: str) -> list[dict[str, Any]]:
    """Return the JSON messages that were printed one after another, with the protocol's names.

    By reflection grpcurl prints those anyway: Python's descriptors lack their JSON names.
    """
    decoder, found = json.JSONDecoder(object_pairs_hook=_renamed), []
    while output := output.strip():
        message, end = decoder.raw_decode(output)
        found.append(message)
        output = output[end:]
    return found


def _renamed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", name): value for name, value in pairs}


def request(name: str, model: str = "digits") -> dict[str, Any]:
    return {
        "modelName": model,
        "id": name,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}],
        "rawInputContents": [base64.b64encode(struct.pack("<4f", 1, 2, 3, 4)).decode()],
    }


SUM = base64.b64encode(struct.pack("<f", 10)).decode()


@pytest.mark.parametrize("source", [(), BY_FILE], ids=["reflection", "file"])
async def test_one_request_and_a_stream_of_them(world: World, source: tuple[str, ...]) -> None:
    unary = await grpcurl(world, *source, call=f"{SERVICE}/ModelInfer", data=[request("one")])
    stream = await grpcurl(
        world, *source, call=f"{SERVICE}/ModelStreamInfer",
        data=[request("a"), request("b", "nothing"), request("c")],
    )  # fmt: skip

    (answer,) = messages(unary)
    assert (answer["id"], answer["raw_output_contents"]) == ("one", [SUM])
    assert answer["parameters"]["energy_j"] == {"double_param": 3.6}
    first, second, third = messages(stream)
    assert first["infer_response"]["raw_output_contents"] == [SUM]
    assert first["infer_response"]["parameters"]["triton_final_response"] == {"bool_param": True}
    assert second["error_message"] == "no model 'nothing'; models are digits"
    assert second["infer_response"]["id"] == "b"
    assert third["infer_response"]["id"] == "c"


async def test_the_protocol_describes_itself_and_errors_carry_details(world: World) -> None:
    listed = await grpcurl(world, call="list")
    described = await grpcurl(world, call="describe")
    refused = await grpcurl(
        world, call=f"{SERVICE}/RepositoryModelLoad", data=[{"modelName": "digits"}]
    )

    assert SERVICE in listed.split()
    assert "ModelStreamInfer" in described
    assert "FailedPrecondition" in refused
    assert "PLANNER_DECIDES" in refused


async def test_health_is_serving(world: World) -> None:
    found = await grpcurl(world, call="grpc.health.v1.Health/Check", data=[{"service": SERVICE}])

    assert messages(found) == [{"status": "SERVING"}]


async def test_the_health_of_all_is_listed_and_described(world: World) -> None:
    """By reflection: grpcurl knows the method from nowhere else."""
    described = await grpcurl(world, call="describe")
    listed = await grpcurl(world, call="grpc.health.v1.Health/List")

    assert "rpc List ( .grpc.health.v1.HealthListRequest )" in described
    found = json.loads(listed)["statuses"]
    assert found[""] == found[SERVICE] == {"status": "SERVING"}
