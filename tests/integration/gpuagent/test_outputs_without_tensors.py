"""Outputs without a tensor are served where they can be, and named where they cannot."""

import math
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from inference import grpc_service_pb2 as oip
from services.cli.main import app
from services.gpuagent.worker import tensor_messages, tensors
from services.gpuagent.worker.onnx_engine import Engine
from services.gpuagent.worker.providers import CPU
from services.kit.errors import InvalidArgument
from tests.support.worker.batch_families import save

pytestmark = pytest.mark.usefixtures("forked_readers")

RANDOM = np.random.default_rng(3)
ITEMS = RANDOM.standard_normal((60, 4)).astype(np.float32)
SEQUENCE = """
    (float[n,4] x) => (float[n,4] y, seq(float[n,4]) parts)
    { y = Relu(x) parts = SequenceConstruct(x) }"""


@pytest.mark.parametrize("labels", [["ash", "oak", "elm"], [30, 1, 200]])
def test_a_classifiers_map_is_served_as_its_scores(tmp_path: Path, labels: list[object]) -> None:
    """As scikit-learn gives them, a column for each sorted label, and batches as without a map."""
    from skl2onnx import to_onnx  # noqa: PLC0415 - each test process imports this module
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    classifier = LogisticRegression().fit(ITEMS, np.array(labels * 20))
    (tmp_path / "m.onnx").write_bytes(to_onnx(classifier, ITEMS).SerializeToString())
    engine = Engine(tmp_path / "m.onnx", CPU)
    engine.prove_batches(8)
    request = oip.ModelInferRequest(model_name="m", raw_input_contents=[ITEMS[:5].tobytes()])
    (given,) = engine.signature.inputs
    request.inputs.add(name=given.name, datatype="FP32", shape=[5, 4])

    read = tensor_messages.parse(request.SerializeToString(), engine.signature)
    data = tensor_messages.response(read, engine.signature, engine.run(read.feeds))
    answer = oip.ModelInferResponse.FromString(data)

    scores = answer.outputs[1]
    found = tensors.decode(answer.raw_output_contents[1], "FP32", scores.shape, field="")
    assert (scores.name, list(scores.shape)) == ("output_probability", [5, 3])
    assert np.allclose(found, classifier.predict_proba(ITEMS[:5]), atol=1e-5)
    assert engine.signature.batches


def test_an_output_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    """In the worker's log, to the client that requests it, and by `init`."""
    file = save(tmp_path / "parts.onnx", SEQUENCE)
    with capture_logs() as logs:
        engine = Engine(file, CPU)
    request = oip.ModelInferRequest(model_name="m", raw_input_contents=[ITEMS[:1].tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.outputs.add(name="parts")
    with pytest.raises(InvalidArgument, match=r"'parts' is a seq\(tensor\(float\)\), which the pr"):
        tensor_messages.parse(request.SerializeToString(), engine.signature)
    said = CliRunner().invoke(app, ["init", str(tmp_path), "--no-control", "--onnx", str(file)])

    assert [(each["output"], each["type"]) for each in logs] == [("parts", "seq(tensor(float))")]
    assert "its output 'parts' is a seq(tensor(float)): not served" in said.stdout
    assert math.prod(engine.signature.outputs[0].shape) == -4
