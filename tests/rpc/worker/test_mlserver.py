"""A worker in front of MLServer, as its makers release it, in an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inference import grpc_service_pb2 as oip
from services.kit.config import ExternalRuntime
from tests.support.paths import ROOT
from tests.support.worker.worker_process import output, routed, worker, worker_spec

VERSION = "1.7.1"
ENVIRONMENT = ROOT / "out" / "mlserver" / "venv"

RUNTIME = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Doubler(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        x = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        if x.shape[-1] != 2:
            raise ValueError("x has two columns")
        y = NumpyCodec.encode_output("y", 2 * x)
        return InferenceResponse(model_name=self.name, outputs=[y])
"""


@pytest.fixture(scope="module")
def program() -> Path:
    """MLServer's program, installed (in a minute) where CINQUEFOIL_TEST_MLSERVER says so."""
    program = ENVIRONMENT / "bin" / "mlserver"
    if not program.exists():
        if "CINQUEFOIL_TEST_MLSERVER" not in os.environ:
            pytest.skip("MLServer is not installed; CINQUEFOIL_TEST_MLSERVER=1 installs it")
        pip = [str(ENVIRONMENT / "bin" / "pip"), "install", "-q", f"mlserver=={VERSION}"]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
            subprocess.run(pip, check=True, capture_output=True, timeout=400)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"MLServer {VERSION} cannot be installed here: {error}")
    return program


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model repository with one model, "doubler": y = 2 x."""
    folder = tmp_path / "repository" / "doubler"
    folder.mkdir(parents=True)
    (folder / "doubling.py").write_text(RUNTIME)
    settings = {"name": "doubler", "implementation": "doubling.Doubler"}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    return folder.parent


@pytest.mark.timeout(500)
async def test_mlserver_answers_under_a_worker(
    tmp_path: Path, program: Path, repository: Path
) -> None:
    """Started, waited for, with several requests at a time, and its errors kept apart."""
    runtime = ExternalRuntime(
        kind="external",
        command=(str(program), "start", "{file}"),
        environment={
            "MLSERVER_GRPC_PORT": "{port}",
            "MLSERVER_HTTP_PORT": "{port_1}",
            "MLSERVER_METRICS_PORT": "{port_2}",
            "MLSERVER_PARALLEL_WORKERS": "0",
        },
        model_name="doubler",
    )
    spec = worker_spec(tmp_path, repository, runtime=runtime)
    async with worker(spec) as running:
        async with routed(spec.listen) as router:
            result = await router.infer(_request([[1, 2], [3, 4]]))
            wrong = await router.infer(_request([[1, 2, 3]]), 2)
        running.process.terminate()
        status = await running.exit_status()

    answer = oip.ModelInferResponse.FromString(result.response)
    assert output(result.response, "y") == [2.0, 4.0, 6.0, 8.0]
    assert (answer.model_name, answer.id) == ("m", "r-1")
    assert result.receipt.batch_size == 2
    assert result.receipt.energy_j > 0
    assert wrong.status != ""
    assert "two columns" in wrong.message
    assert status == 0


def _request(values: list[list[float]]) -> oip.ModelInferRequest:
    x = np.array(values, np.float32)
    message = oip.ModelInferRequest(model_name="m", id="r-1")
    message.inputs.add(name="x", datatype="FP32", shape=x.shape)
    message.raw_input_contents.append(x.tobytes())
    return message
