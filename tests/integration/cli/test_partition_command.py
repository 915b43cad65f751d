import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
import yaml
from typer.testing import CliRunner

from services.cli.main import app
from services.kit.config.models import Variant
from services.kit.profiles.factory import clock_sensitivity
from services.local.demo import convnet

pytestmark = [pytest.mark.usefixtures("forked_readers"), pytest.mark.timeout(180)]

PROFILE = {"kind": "analytic", "gmacs_per_item": 1}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("network") / "conv.onnx"
    file.write_bytes(convnet.build(16))
    return file


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    return result.exit_code, result.output


def test_a_partition_is_on_disk_with_what_programs_must_know(network: Path, tmp_path: Path) -> None:
    """The printed lines are what the deployment file takes, sensitivities included."""
    out, database = tmp_path / "stages", tmp_path / "s.db"

    code, text = run(
        *("partition", network, "--stages", 3, "--gpu", "v100", "--out", out),
        *("--database", database),
    )

    assert code == 0, text
    report = json.loads((out / "stages.json").read_text())
    printed = yaml.safe_load(text[text.index("stages:") :])
    assert printed == report["variant"]
    variant = Variant.model_validate(printed | {"accuracy": 1, "profile": PROFILE})
    assert [each.file for each in variant.stages] == [out / f"stage-{n}.onnx" for n in range(3)]
    for number, stage in enumerate(report["stages"]):
        found = clock_sensitivity(variant, number)
        assert found == pytest.approx(stage["clock_sensitivity"], abs=1e-3)
        assert variant.stages[number].share == pytest.approx(stage["latency_share"], abs=1e-4)
    assert report["verified"]["runs"] > 0
    assert [each["file"] for each in report["stages"]] == [f"stage-{n}.onnx" for n in range(3)]
    assert sum(each["latency_share"] for each in report["stages"]) == pytest.approx(1.0)
    for stage in report["stages"]:
        session = onnxruntime.InferenceSession(str(out / stage["file"]))
        assert [each.name for each in session.get_inputs()] == [t["name"] for t in stage["inputs"]]
        assert [each.name for each in session.get_outputs()] == [
            t["name"] for t in stage["outputs"]
        ]
    assert report["stages"][0]["outputs"] == report["stages"][1]["inputs"]


def test_sensitivities_are_printed_kept_and_drawn(network: Path, tmp_path: Path) -> None:
    code, text = run(
        *("gpuagent", "sensitivity", network, "--gpu", "v100", "--json"),
        *("--out", tmp_path, "--database", tmp_path / "s.db"),
    )

    assert code == 0, text
    report = json.loads(text)
    assert report["device"] == "v100"
    assert sum(each["share"] for each in report["operators"]) == pytest.approx(1.0)
    assert (tmp_path / "conv.v100.png").stat().st_size > 1000
    assert (tmp_path / "s.db").exists()


def test_what_cannot_be_is_one_sentence(network: Path, tmp_path: Path) -> None:
    end = ("--out", tmp_path, "--database", tmp_path / "s.db")
    many = run("partition", network, "--stages", 99, *end)
    gpu = run("partition", network, "--gpu", "abacus", *end)
    file = run("partition", tmp_path / "none.onnx", *end)

    assert [code for code, _ in (many, gpu, file)] == [1, 1, 1]
    assert "at most" in many[1]
    assert "a100-40gb" in gpu[1]
    assert "none.onnx" in file[1]
    assert not list(tmp_path.glob("*.onnx"))
    assert onnx.load(network)
