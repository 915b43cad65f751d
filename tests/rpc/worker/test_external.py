"""Workers whose model another server of the Open Inference Protocol runs."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from cinquefoil.gpuagent.v1 import inventory_pb2, worker_pb2
from inference import grpc_service_pb2 as oip
from inference.grpc_service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from services.gpuagent.worker.external_server import started, with_secrets
from services.kit import config
from services.kit.config import ClientTls, ExternalRuntime
from services.kit.net import free_port
from services.kit.rpc import serving
from tests.support.certificates import issued
from tests.support.gpuagent.agent_service import NODE, agent, planning, segment_spec
from tests.support.gpuagent.agent_service import deployment as simple_deployment
from tests.support.oip_server import Doubler
from tests.support.paths import SUPPORT
from tests.support.worker.worker_process import (
    Router,
    output,
    routed,
    until,
    work,
    worker,
    worker_spec,
)

SERVER = SUPPORT / "oip_server.py"


def doubling(fault: Path, **changes: Any) -> ExternalRuntime:
    """Return the runtime of the tests' own server."""
    command = (sys.executable, str(SERVER), "{port}", str(fault))
    usual = {"kind": "external", "command": command, "model_name": "doubler"}
    return ExternalRuntime(**(usual | changes))


def request(*values: float, datatype: str = "FP32", request_id: str = "") -> oip.ModelInferRequest:
    """Return a request of pairs, under the model's name in the deployment."""
    x = np.array(values, np.float32).reshape(-1, 2)
    message = oip.ModelInferRequest(model_name="m", id=request_id)
    message.inputs.add(name="x", datatype=datatype, shape=x.shape)
    message.raw_input_contents.append(x.tobytes())
    return message


def servers_below(pid: int) -> list[psutil.Process]:
    """Return the external servers that a worker started."""
    children = psutil.Process(pid).children()
    return [child for child in children if str(SERVER) in child.cmdline()]


@asynccontextmanager
async def bridged(folder: Path, runtime: ExternalRuntime, **changes: Any) -> AsyncIterator[Router]:
    """Run a worker in front of an external server; yield a stream to it."""
    spec = worker_spec(folder, folder / "no-file", runtime=runtime, **changes)
    async with worker(spec), routed(spec.listen) as router:
        yield router


async def test_answers_charges_and_errors_are_the_servers_under_the_models_own_name(
    tmp_path: Path,
) -> None:
    """Each piece of work pays for its part of the batch that it was in.

    Errors of the request are the caller's, and others may be tried elsewhere.
    """
    fault = tmp_path / "fault"
    async with bridged(tmp_path, doubling(fault)) as router:
        metadata = oip.ModelMetadataResponse.FromString(router.hello.metadata)
        result = await router.infer(request(1, 2, request_id="r-1"), 99)
        await router.send(
            work(1, request(1, 1, 1, 1, 1, 1)),
            work(2, request(2, 2)),
            work(3, request(3, 3, 3, 3)),
            work(4, request(4, 4, 4, 4)),
        )
        results = await router.wait_for(1, 2, 3, 4)

        wrong = await router.infer(request(1, 2, datatype="FP64"), 5)
        await router.send(worker_pb2.Work(id=6, request=b"\xff"))
        (broken,) = await router.wait_for(6)
        fault.write_text("fail")
        failed = await router.infer(request(1, 2), 7)
        fault.write_text("full")
        full = await router.infer(request(1, 2), 8)

    answer = oip.ModelInferResponse.FromString(result.response)
    assert output(result.response, "y") == [2.0, 4.0]
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "r-1")
    assert (metadata.name, list(metadata.versions)) == ("", ["1"])
    assert [(tensor.name, list(tensor.shape)) for tensor in metadata.inputs] == [("x", [-1, 2])]

    assert [output(result.response, "y")[0] for result in results] == [2.0, 4.0, 6.0, 8.0]
    for items, receipt in zip((3, 1, 2, 2), (result.receipt for result in results), strict=True):
        # Which of them share a batch, and how long it takes, is a matter of timing.
        profiled_s = 0.01 * (1 + 0.1 * (receipt.batch_size - 1))
        assert items <= receipt.batch_size <= 4
        assert receipt.energy_j == pytest.approx(items * receipt.compute_s / profiled_s)

    assert (wrong.status, wrong.message) == ("INVALID_ARGUMENT", "x takes FP32")
    assert broken.status == "INVALID_ARGUMENT"
    assert (failed.status, failed.message) == ("INTERNAL", "CUDA error")
    assert full.status == "RESOURCE_EXHAUSTED"
    assert "RESOURCE_EXHAUSTED: queue is full" in full.message
    assert full.retry_after_s == 3600.0, "it said 31 years"


async def test_a_worker_does_not_outlive_its_server(tmp_path: Path) -> None:
    """Requests in its hands should be tried elsewhere; its supervisor starts both again."""
    spec = worker_spec(tmp_path, tmp_path / "no-file", runtime=doubling(tmp_path / "fault"))
    async with worker(spec) as running, routed(spec.listen) as router:
        (tmp_path / "fault").write_text("die")
        result = await router.infer(request(1, 2))
        status = await running.exit_status()

    assert result.status == "UNAVAILABLE"
    assert status == 1


async def test_a_server_that_lives_but_is_not_ready_any_more_is_given_up(tmp_path: Path) -> None:
    spec = worker_spec(tmp_path, tmp_path / "no-file", runtime=doubling(tmp_path / "fault"))
    async with worker(spec) as running:
        async with routed(spec.listen) as router:
            assert (await router.infer(request(1, 2))).status == ""
        (tmp_path / "fault").write_text("unready")
        assert await running.exit_status() == 1


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_does_not_outlive_its_worker(tmp_path: Path, ending: signal.Signals) -> None:
    spec = worker_spec(tmp_path, tmp_path / "no-file", runtime=doubling(tmp_path / "fault"))
    async with worker(spec) as running:
        async with routed(spec.listen):
            (server,) = servers_below(running.process.pid)
        os.kill(running.process.pid, ending)
        await running.exit_status()
        await asyncio.wait_for(until(lambda: not server.is_running()), 45)


async def test_a_server_that_runs_already_is_attached_to_and_left_running(tmp_path: Path) -> None:
    port = free_port()
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), str(port), str(tmp_path / "fault")
    )
    try:
        attached = doubling(tmp_path, command=(), address=f"127.0.0.1:{port}")
        async with bridged(tmp_path, attached) as router:
            result = await router.infer(request(1, 2))
        assert output(result.response, "y") == [2.0, 4.0]
        assert server.returncode is None
    finally:
        server.kill()
        await server.wait()


async def test_a_server_that_runs_elsewhere_is_called_with_tls(tmp_path: Path) -> None:
    """The server requires a certificate: a worker in plaintext or without one gets no answer."""
    tls = issued(tmp_path / "pki", "worker/triton", "client/app")

    def register(server: Any) -> None:
        add_GRPCInferenceServiceServicer_to_server(Doubler(tmp_path / "fault"), server)  # type: ignore[abstract]

    async with serving("127.0.0.1:0", register, (), tls=tls.of("worker", "triton")) as server:
        shown = dict(tls.of("client", "app")).items()
        client = ClientTls(**{name: value for name, value in shown if name.endswith("_file")})
        address = f"localhost:{server.port}"
        runtime = doubling(tmp_path, command=(), address=address, tls=client)
        async with bridged(tmp_path, runtime) as router:
            result = await router.infer(request(1, 2))
    assert output(result.response, "y") == [2.0, 4.0]


async def test_a_server_s_secrets_come_from_a_file_that_is_not_copied(tmp_path: Path) -> None:
    """Quoted or not; they are in the server's environment, and not in the worker's spec."""
    secrets = tmp_path / "secrets.env"
    secrets.write_text("# of the registry\nTOKEN='hunter2 $HOME'\nexport PLAIN=hunter2\n")
    runtime = doubling(
        tmp_path / "fault", environment={"PLAIN": "x", "MORE": "y"}, environment_file=secrets
    )
    spec = worker_spec(tmp_path, tmp_path / "no-file", runtime=runtime)
    async with worker(spec) as running, routed(spec.listen):
        (server,) = servers_below(running.process.pid)
        environment, written = server.environ(), (tmp_path / "worker-0.json").read_text()
    found = {name: environment[name] for name in ("TOKEN", "PLAIN", "MORE")}
    assert found == {"TOKEN": "hunter2 $HOME", "PLAIN": "hunter2", "MORE": "y"}
    assert "secrets.env" in written
    assert "hunter2" not in written


@pytest.mark.parametrize(
    ("text", "why"), [(None, "No such file"), ("TOKEN\n", "must be NAME=value: TOKEN")]
)
def test_a_file_of_secrets_that_cannot_be_used_is_named(
    tmp_path: Path, text: str | None, why: str
) -> None:
    if text is not None:
        (tmp_path / "secrets.env").write_text(text)
    runtime = doubling(tmp_path, environment_file=tmp_path / "secrets.env")
    with pytest.raises(RuntimeError, match=rf"runtime\.environment_file: .*{why}"):
        with_secrets(worker_spec(tmp_path, tmp_path / "f", runtime=runtime))


async def test_a_server_that_cannot_start_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime = ExternalRuntime(kind="external", command=("no-such-server", "{port}"))
    async with worker(worker_spec(tmp_path, tmp_path / "f", runtime=runtime)) as running:
        assert await running.exit_status() == 1
    assert "cannot start no-such-server: No such file or directory" in capfd.readouterr().err


async def test_a_server_forks_with_grpc_as_it_likes(tmp_path: Path) -> None:
    """A setting of our own processes does not reach the server's environment."""
    written = tmp_path / "written"
    say = (
        f"import os; open({str(written)!r}, 'w').write(os.getenv('GRPC_ENABLE_FORK_SUPPORT', '-'))"
    )
    runtime = ExternalRuntime(kind="external", command=(sys.executable, "-c", say, "{port}"))
    async with started(worker_spec(tmp_path, tmp_path / "f"), runtime) as server:
        assert await server.ended(10.0) == "the model's server ended with status 0"

    assert written.read_text() == "-"


@asynccontextmanager
async def segment_on_external_servers(
    folder: Path, processes: int
) -> AsyncIterator[inventory_pb2.Segment]:
    """Run an agent and start a segment of it; give the segment as reported."""
    async with planning() as (planner, port):
        settings = simple_deployment(folder, folder / "f", f"127.0.0.1:{port}")
        runtime = config.ExternalRuntime(
            kind="external",
            command=(sys.executable, str(SERVER), "{port}", "{file}"),
            model_name="doubler",
        )
        model = settings.models["m"]
        variant = model.variants["v"].model_copy(update={"runtime": runtime})
        model = model.model_copy(update={"variants": {"v": variant}})
        async with agent(settings.model_copy(update={"models": {"m": model}})):
            await planner.until(lambda: planner.node.name == NODE)
            assert (await planner.create("3g.20gb", 0)).ok
            started = await planner.start(segment_spec(processes=processes))
            assert started.ok, started.message
            segment = planner.segment("s-1")
            assert segment is not None
            yield segment


async def test_a_segment_of_a_plan_runs_on_an_external_server(tmp_path: Path) -> None:
    """From the deployment file to the answer, two processes with a server each."""
    async with segment_on_external_servers(tmp_path, processes=2) as segment:
        assert segment.state == inventory_pb2.SEGMENT_STATE_READY
        for endpoint in segment.endpoints:
            async with routed(endpoint) as router:
                result = await router.infer(request(1, 2))
            assert output(result.response, "y") == [2.0, 4.0]


async def test_a_users_own_services_folder_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent runs where a package `services` lies: workers and their servers import ours."""
    decoy = tmp_path / "project" / "services"
    decoy.mkdir(parents=True)
    (decoy / "__init__.py").write_text("raise SystemExit('the decoy was imported')\n")
    monkeypatch.chdir(decoy.parent)
    async with segment_on_external_servers(tmp_path, processes=1) as segment:
        async with routed(segment.endpoints[0]) as router:
            result = await router.infer(request(1, 2))
        assert output(result.response, "y") == [2.0, 4.0]
