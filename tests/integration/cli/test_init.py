"""`cinquefoil init` for models that exist: real networks, a real validation set, real files."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from services.cli.init.document import _rounded_up
from services.cli.main import app
from services.kit.config import Deployment
from services.kit.config.loader import load
from services.local.demo.digits import held_out
from tests.support.paths import ROOT

CONFIG = "cinquefoil.yaml"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images, labels = held_out()
    file = tmp_path_factory.mktemp("samples") / "val.npz"
    np.savez(file, images=images, labels=labels)
    return file


def init(folder: Path, *words: object) -> Result:
    return CliRunner().invoke(app, ["init", str(folder), "--no-control", *map(str, words)])


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, convnets: Path, samples: Path
) -> tuple[Path, Result]:
    """A deployment of a real network and its int8 form."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "conv-16.onnx").write_bytes((convnets / "conv-16.onnx").read_bytes())
    words = ("--onnx", folder / "conv-16.onnx", "--data", samples, "--quantize", "int8")
    return folder, init(folder, *words)


def deployed(made: tuple[Path, Result]) -> Deployment:
    folder, result = made
    assert result.exit_code == 0, result.output
    return load(folder / CONFIG)


def test_accuracies_are_measured_on_items_that_the_scales_are_not_from(
    made: tuple[Path, Result],
) -> None:
    """The int8 form is a network of its own, with another accuracy; both say of how many items."""
    variants = deployed(made).models["conv-16"].variants
    assert set(variants) == {"conv-16", "conv-16-int8"}
    assert variants["conv-16"].accuracy == pytest.approx(0.983, abs=0.01)
    assert 0.9 < variants["conv-16-int8"].accuracy < 1
    types = {node.op_type for node in onnx.load(variants["conv-16-int8"].file).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= types
    assert (made[0] / CONFIG).read_text().count("# measured on 591 items") == 2


def test_figures_come_from_the_file_and_say_so(made: tuple[Path, Result]) -> None:
    """0.6 million multiply-accumulates, as the network's own module says; no device, no guess."""
    model = deployed(made).models["conv-16"]
    assert model.variants["conv-16"].profile.gmacs_per_item == pytest.approx(0.0006, rel=0.02)
    text = (made[0] / CONFIG).read_text()
    for said in ("# takes image float[?, 64]", "# from its operators; an item takes", "  # "):
        assert said in text
    assert YAML().load(text)["models"]["conv-16"]["variants"]["conv-16"]["file"] == "conv-16.onnx"


def test_a_file_that_exists_is_kept(made: tuple[Path, Result]) -> None:
    result = init(made[0], "--onnx", made[0] / "conv-16.onnx")
    assert result.exit_code == 1
    assert "exists; `cinquefoil models add` adds a model to it" in result.stderr


def test_a_fixed_batch_is_named_and_never_planned_as_a_batch(
    tmp_path: Path, convnets: Path
) -> None:
    network = onnx.load(convnets / "conv-16.onnx")
    network.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(network, tmp_path / "fixed.onnx")

    result = init(tmp_path, "--onnx", tmp_path / "fixed.onnx")

    assert "FIXED_BATCH" in result.stdout, result.output
    (variant,) = load(tmp_path / CONFIG).models["fixed"].variants.values()
    assert variant.max_batch == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--onnx", "{tree}", "--onnx", "{conv}"), "--data: needed to measure the accuracies"),
        (("--onnx", "{conv}", "--data", "{conv}"), "is not an .npz file of numbers"),
        (("--onnx", "missing.onnx"), "there is no missing.onnx"),
        (("--hf", "missing"), "`hf download NAME --local-dir FOLDER`"),
        (("--triton-repo", "{folder}"), "has no model: no MODEL/config.pbtxt in it"),
    ],
)
def test_what_is_missing_is_one_sentence(
    tmp_path: Path, convnets: Path, digits_models: Path, words: tuple[str, ...], said: str
) -> None:
    places = {
        "tree": digits_models / "tree.onnx",
        "conv": convnets / "conv-16.onnx",
        "folder": tmp_path,
    }
    result = init(tmp_path, *(word.format(**places) for word in words))

    assert said in result.stderr
    assert result.exit_code == 1
    assert not (tmp_path / CONFIG).exists()


def test_a_validation_set_without_the_inputs_array_names_it(tmp_path: Path, convnets: Path) -> None:
    np.savez(tmp_path / "val.npz", a=np.zeros((4, 64)), b=np.zeros((4, 64)), labels=np.zeros(4))
    result = init(tmp_path, "--onnx", convnets / "conv-16.onnx", "--data", tmp_path / "val.npz")
    assert "no array for input 'image'; it has a, b" in result.stderr


REPOSITORY = {
    "resnet": (
        'backend: "onnxruntime" max_batch_size: 16 instance_group [{count: 2 kind: KIND_GPU}]'
        "dynamic_batching { preferred_batch_size: [4, 8] }"
    ),
    "engine": 'platform: "tensorrt_plan" max_batch_size: 32',
    "other": 'platform: "tensorrt_plan"',
    "both": 'platform: "ensemble" ensemble_scheduling { step [{model_name: "resnet"}] }',
}


def test_a_triton_repository_is_read_and_ensembles_are_refused_by_name(
    tmp_path: Path, convnets: Path
) -> None:
    """Batch sizes and instances are the repository's; what has no arithmetic to read is named."""
    for name, text in REPOSITORY.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(text)
    for version in ("1", "10", "9"):
        (tmp_path / "models/resnet" / version).mkdir()
    (tmp_path / "models/resnet/10/model.onnx").write_bytes((convnets / "conv-16.onnx").read_bytes())

    result = init(tmp_path, "--triton-repo", tmp_path / "models", "--gmacs", "engine=4.1")

    assert "both is left out: an ensemble (of resnet)" in result.stdout
    assert "other is left out: nothing here reads the arithmetic of tensorrt_plan" in result.stdout
    deployment = load(tmp_path / CONFIG)
    resnet, engine = (deployment.models[name].variants[name] for name in ("resnet", "engine"))
    assert (resnet.file, resnet.max_batch) == (tmp_path / "models/resnet/10/model.onnx", 16)
    assert (engine.max_batch, engine.profile.gmacs_per_item) == (32, 4.1)
    assert engine.runtime.kind == "external"
    assert f"--model-repository={tmp_path / 'models'}" in engine.runtime.command
    assert (deployment.planner.batch_sizes, deployment.planner.max_processes) == ((1, 4, 8), 2)


def test_a_snapshot_of_the_hub_gives_its_onnx_files_as_variants(
    tmp_path: Path, convnets: Path, samples: Path
) -> None:
    """The folder's layout is optimum's: onnx/model.onnx, onnx/model_quantized.onnx."""
    folder = tmp_path / "tiny-digits"
    (folder / "onnx").mkdir(parents=True)
    for source, target in (("conv-16", "model_quantized"), ("conv-128", "model")):
        content = (convnets / f"{source}.onnx").read_bytes()
        (folder / "onnx" / f"{target}.onnx").write_bytes(content)

    assert init(tmp_path, "--hf", folder, "--data", samples).exit_code == 0
    variants = load(tmp_path / CONFIG).models["tiny-digits"].variants
    assert variants["model"].accuracy > variants["model_quantized"].accuracy


@pytest.mark.parametrize(("value", "rounded"), [(0.3, 0.5), (0.1, 0.1), (0.11, 0.2), (6, 10)])
def test_objectives_are_round_numbers(value: float, rounded: float) -> None:
    assert _rounded_up(value) == rounded


def test_the_example_is_still_written_without_models(tmp_path: Path) -> None:
    assert init(tmp_path).exit_code == 0
    assert (tmp_path / CONFIG).read_text() == (ROOT / CONFIG).read_text()
