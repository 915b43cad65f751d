"""A decoupled model from end to end: Triton client, router, worker process, external server."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.planner.v1 import plan_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import ExternalRuntime
from tests.support.paths import SUPPORT
from tests.support.router.router_service import running
from tests.support.waiting import until
from tests.support.worker.worker_process import worker, worker_spec

SERVER = SUPPORT / "oip_server.py"
PROGRAM = SUPPORT / "router/tritonclient_streams.py"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Everything both clients saw; one chain of processes for all tests."""
    return asyncio.run(look(tmp_path_factory.mktemp("external")))


async def look(folder: Path) -> Mapping[str, Any]:
    command = (sys.executable, str(SERVER), "{port}", str(folder / "no-fault"))
    runtime = ExternalRuntime(kind="external", command=command, model_name="counter")
    spec = worker_spec(folder, folder / "no-file", runtime=runtime)
    spec = spec.model_copy(update={"model": "digits"})
    async with running() as world, worker(spec):
        instance = plan_pb2.Instance(
            endpoint=spec.listen, segment_id="s-1", variant="v", share=1.0, credits=4
        )
        await world.planner.route(instance)
        stub = GRPCInferenceServiceStub(world.channel)

        async def ready() -> bool:
            return (await stub.ModelReady(pb.ModelReadyRequest(name="digits"))).ready

        await until(ready, 20)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            PROGRAM,
            world.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        found: Mapping[str, Any] = json.loads(output)
        return found


def of(found: list[list[Any]], request: str) -> list[list[Any]]:
    return [rest for name, *rest in found if name == request]


def test_parts_arrive_and_the_empty_last_one_on_request(
    seen: Mapping[str, Any],
) -> None:
    """Value, final flag, receipt: the server marks the last answer of "y" only."""
    found = seen["sync"]["streamed"]

    assert of(found, "x") == [
        [[1.0], False, False],
        [[2.0], False, False],
        [[3.0], False, False],
        [[], True, True],
    ]
    assert of(found, "y") == [[[1.0], False, False], [[2.0], True, True]]


def test_the_asyncio_client_sees_the_same(seen: Mapping[str, Any]) -> None:
    wanted = [[[1.0], False, False], [[2.0], False, False], [[3.0], True, True]]

    assert of(seen["aio"]["streamed"], "x") == wanted
    assert of(seen["aio"]["streamed"], "y") == wanted


def test_the_unary_call_takes_one_answer_and_refuses_more(seen: Mapping[str, Any]) -> None:
    found = seen["sync"]

    assert found["policy"] == {"decoupled": True}
    assert found["one"] == [1.0]
    status, message = found["refused"]
    assert status == "StatusCode.UNIMPLEMENTED"
    assert "is decoupled and gave more than one response" in message
