"""Unmodified clients of the OpenAI API: each as a program of its own, on a router and a worker."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cinquefoil.planner.v1 import plan_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.gpuagent.core.worker_spec import WorkerSpec
from services.kit.config import OpenAiRuntime
from services.kit.net import free_port
from tests.support.paths import ROOT, SUPPORT
from tests.support.router.router_service import running
from tests.support.waiting import until
from tests.support.worker.language_worker import needs_llama, text_spec
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
    async with serving(worker_spec(tmp_path, tmp_path / "no-file", runtime=runtime)) as found:
        yield found


@asynccontextmanager
async def serving(spec: WorkerSpec) -> AsyncIterator[str]:
    """A router with one worker; yields where its API is."""
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

        await until(ready, 120)
        yield f"http://{world.http}/v1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_client_does_what_it_does_with_the_server_itself(
    address: str, program: str
) -> None:
    python = sys.executable if program == IN_CI else str(INSTALLED / "bin/python")
    command = "node" if program.endswith(".mjs") else python
    file = HERE / program
    if program.endswith(".mjs"):  # Node looks for packages beside the program
        file = INSTALLED / program
        file.write_text((HERE / program).read_text())
    await run(command, file, address)


@pytest.mark.clients
@needs_llama
@pytest.mark.timeout(300)
async def test_a_real_model_calls_tools_keeps_schemas_and_reasons_for_clients(
    tmp_path: Path,
) -> None:
    """SmolLM2 in llama.cpp: the example's client, and instructor where it forces the form."""
    how = {"slots": 2, "chat": True, "reasoning": False, "context_tokens": 1024}
    example = ROOT / "examples/openai"
    spec = text_spec(tmp_path, **how, chat_template=example / "chat_template.jinja")
    python = str(INSTALLED / "bin/python")
    async with serving(spec) as address:
        said = await run(python, example / "client.py", address)
        await run(python, HERE / "real" / "instructor_forms.py", address)

    assert "tool: get_weather {'city': 'Paris'}" in said
    assert all(f"\n{word}: " in said for word in ("streamed", "schema", "reasoning", "likeliest"))


async def run(command: str, file: Path, address: str) -> str:
    """Run a program; return its output."""
    process = await asyncio.create_subprocess_exec(
        command,
        str(file),
        env={**os.environ, "BASE_URL": address, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()[-3000:]
    return output.decode()
