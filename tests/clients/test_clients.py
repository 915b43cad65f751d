"""Unmodified clients of the OpenAI API: each as a program of its own, on a router and a worker."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cinquefoil.planner.v1 import plan_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import OpenAiRuntime
from services.kit.net import free_port
from tests.support.paths import ROOT, SUPPORT
from tests.support.router.router_service import running, until
from tests.support.worker.worker_process import worker, worker_spec

HERE = Path(__file__).parent / "programs"
INSTALLED = ROOT / ".venv-clients"
IN_CI = "openai_python.py"
"""The client that tests have anyway; the others take `make test-clients`."""

PROGRAMS = [
    pytest.param(each.name, marks=() if each.name == IN_CI else pytest.mark.clients)
    for each in sorted([*HERE.glob("*.py"), *HERE.glob("*.mjs")])
]


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    """A router whose worker starts a server of the OpenAI API."""
    command = (sys.executable, str(SUPPORT / "openai_server.py"), "{port}", str(tmp_path / "fault"))
    runtime = OpenAiRuntime(kind="openai", slots=4, command=command)
    spec = worker_spec(tmp_path, tmp_path / "no-file", runtime=runtime)
    spec = spec.model_copy(update={"model": "digits"})
    async with running(http_listen=f"127.0.0.1:{free_port()}") as world, worker(spec):
        await world.planner.route(
            plan_pb2.Instance(
                endpoint=spec.listen, segment_id="s-1", variant="v", share=1.0, zone="US-CAL"
            )
        )
        stub = GRPCInferenceServiceStub(world.channel)

        async def ready() -> bool:
            return (await stub.ModelReady(pb.ModelReadyRequest(name="digits"))).ready

        await until(ready, 20)
        yield f"http://{world.http}/v1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_client_does_what_it_does_with_the_server_itself(
    address: str, program: str
) -> None:
    python = sys.executable if program == IN_CI else str(INSTALLED / "bin/python")
    command = ("node",) if program.endswith(".mjs") else (python,)
    file = HERE / program
    if program.endswith(".mjs"):  # Node looks for packages beside the program
        file = INSTALLED / program
        file.write_text((HERE / program).read_text())
    process = await asyncio.create_subprocess_exec(
        *command,
        str(file),
        env={**os.environ, "BASE_URL": address, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()[-3000:]
