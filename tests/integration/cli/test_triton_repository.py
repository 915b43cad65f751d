"""Repositories in the forms that Triton's documentation writes."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner

from services.cli.init.triton_repository import read_repository
from services.cli.main import app

pytestmark = [pytest.mark.usefixtures("forked_readers"), pytest.mark.timeout(180)]

NEGATED = (
    '<ir_version: 10, opset_import: ["": 21]> n (float[N, M] x) => (float[N, M] y) { y = Neg(x) }'
)

ONNX = 'platform: "onnxruntime_onnx" max_batch_size: 8 '

FORMS = {
    "warm": ONNX
    + """
    model_warmup [ { name: "zeros" batch_size: 1
        inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]
    response_cache { enable: true }
    optimization { execution_accelerators { gpu_execution_accelerator : [
        { name : "tensorrt" parameters { key: "precision_mode" value: "FP16" } } ] } }
    """,
    "state": ONNX
    + """
    sequence_batching { max_sequence_idle_microseconds: 5000000
        oldest { max_candidate_sequences: 4 }
        control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START
            int32_false_true: [ 0, 1 ] } ] } ]
        state [ { input_name: "in" output_name: "out" data_type: TYPE_FP32 dims: [ -1 ]
            initial_state: { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true name: "zero" } } ] }
    """,
    "image": """
    platform: "onnxruntime_onnx" max_batch_size : 0
    input [ { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 8, 8 ]
        reshape { shape: [ 1, 3, 8, 8 ] } } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ 10 ] reshape { shape: [ 1, 10, 1, 1 ] }
        label_filename: "labels.txt" } ]
    instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] }, { kind: KIND_CPU } ]
    """,
    "chosen": ONNX
    + 'version_policy: { specific { versions: [ 1, 2 ] } } default_model_filename: "net.onnx"',
    "gone": ONNX + "version_policy: { specific { versions: 7 } }",
    "all": ONNX + "version_policy: { all { }} dynamic_batching { preferred_batch_size: [ 4 ] "
    "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 100 } "
    "priority_queue_policy { key: 1 value { max_queue_size: 3 } } }",
    "python": 'backend: "python" max_batch_size: 8 '
    'parameters: { key: "A" value: { string_value: "b" } }',
    "stream": 'backend: "python" model_transaction_policy { decoupled: true }',
    "broken": "max_batch_size: many",
    "newer": ONNX + "invented_by_a_later_triton: 3",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FORMS.items():
        for version in (1, 2, 3):
            folder = tmp_path / name / str(version)
            folder.mkdir(parents=True)
            (folder / ("net.onnx" if name == "chosen" else "model.onnx")).touch()
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "completed/1").mkdir(parents=True)
    (tmp_path / "completed/1/model.onnx").touch()
    return tmp_path


def test_each_form_is_imported_or_refused_by_name(repository: Path) -> None:
    """One that is broken takes no other with it."""
    found = read_repository(repository)
    models = {each.name: each for each in found.models}

    assert set(models) == {"warm", "image", "chosen", "all", "python", "newer", "completed"}
    assert found.refused.keys() == {"state", "gone", "stream", "broken"}
    assert "state between requests" in found.refused["state"]
    assert "version_policy: there is no version 7" in found.refused["gone"]
    assert "max_batch_size" in found.refused["broken"] or "many" in found.refused["broken"]

    assert models["warm"].without == ("model_warmup", "optimization", "response_cache")
    assert models["image"].without == ("labels of labels.txt",)
    assert models["image"].shapes == {"x": (3, 8, 8)}
    assert (models["image"].max_batch, models["image"].instances) == (1, 2)
    assert models["chosen"].onnx == repository / "chosen/2/net.onnx"
    assert models["all"].onnx == repository / "all/3/model.onnx"
    assert models["all"].batch_sizes == (4,)
    assert models["python"].onnx is None
    assert models["completed"].max_batch == 4


def test_a_model_whose_network_is_broken_is_left_out_alone(tmp_path: Path) -> None:
    """The others are written, with free sizes as `dims` has them; the message names it."""
    for name in ("good", "bad"):
        (tmp_path / "r" / name / "1").mkdir(parents=True)
        dims = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }'
        (tmp_path / "r" / name / "config.pbtxt").write_text(ONNX + dims)
    onnx.save(onnx.parser.parse_model(NEGATED), tmp_path / "r/good/1/model.onnx")
    (tmp_path / "r/bad/1/model.onnx").write_text("no network")
    words = ["init", str(tmp_path), "--no-control", "--triton-repo", str(tmp_path / "r")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "bad is left out: " in result.output
    assert "  good:" in (tmp_path / "cinquefoil.yaml").read_text()
