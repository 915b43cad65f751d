"""`cinquefoil init` for models that exist: real networks, a real validation set, real files."""

import math
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from services.kit.net import free_port
from services.local.demo.digits import held_out
from tests.support.hub import Hub, hub_of
from tests.support.paths import ROOT
from tests.support.worker.batch_families import MIXING, save

CONFIG = "cinquefoil.yaml"
pytestmark = [pytest.mark.usefixtures("forked_readers"), pytest.mark.timeout(180)]


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
    for said in (
        "# takes image float[?, 64]",
        "# times of batches are in the table; an item takes",
        "  # ",
    ):
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


def test_a_network_that_mixes_items_is_named_and_never_planned_as_a_batch(tmp_path: Path) -> None:
    save(tmp_path / "mean.onnx", MIXING["the mean of the batch"])

    result = init(tmp_path, "--onnx", tmp_path / "mean.onnx")

    assert "an item's 'y' depends on the other items of its batch" in result.stdout, result.output
    (variant,) = load(tmp_path / CONFIG).models["mean"].variants.values()
    assert variant.max_batch == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--onnx", "{tree}", "--onnx", "{conv}"), "--data: needed to measure the accuracies"),
        (("--onnx", "{conv}", "--data", "{conv}"), "is not an .npz file of numbers"),
        (("--onnx", "missing.onnx"), "there is no missing.onnx"),
        (("--pytorch", "net.py"), "--pytorch net.py: FILE:CLASS is needed, such as net.py:Net"),
        (("--pytorch", "missing.py:Net"), "--pytorch: there is no missing.py"),
        (("--hf", "missing"), "no folder missing, and it is not ORG/NAME[@REVISION][/FILE.onnx]"),
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


def test_without_pytorch_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any code of the user runs."""
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "net.py").write_text("raise SystemExit('it ran')")
    result = init(tmp_path, "--pytorch", f"{tmp_path / 'net.py'}:Net")
    assert "pip install torch onnxscript" in result.stderr, result.output


def test_a_module_of_pytorch_is_exported_with_its_weights(tmp_path: Path) -> None:
    """The batch is free, the input has the name that `forward` gives it; a state dict is read."""
    torch = pytest.importorskip("torch", reason="pip install torch onnxscript")
    pytest.importorskip("onnxscript", reason="pip install torch onnxscript")
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(4, 4, bias=False)\n"
        "    def forward(self, row): return super().forward(row)\n"
    )
    torch.save({"weight": torch.eye(4)}, tmp_path / "net.pt")
    np.savez(tmp_path / "val.npz", row=np.eye(4), labels=np.arange(4))
    words = ("--weights", tmp_path / "net.pt", "--data", tmp_path / "val.npz")

    result = init(tmp_path, "--pytorch", f"{tmp_path / 'net.py'}:Net", *words)

    assert result.exit_code == 0, result.output
    (variant,) = load(tmp_path / CONFIG).models["Net"].variants.values()
    assert (variant.file, variant.accuracy) == (tmp_path / "Net.onnx", 1.0)
    assert "takes row float[?, 4]" in (tmp_path / CONFIG).read_text()


def test_classes_that_are_texts_are_compared_with_labels_that_are(tmp_path: Path) -> None:
    """As scikit-learn's classifiers of names give them, each label a text of one item."""
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        net (float[batch, 2] x) => (string[batch] label)
        <string[2] names = {"cat", "dog"}>
        { best = ArgMax<axis = 1, keepdims = 0>(x)  label = Gather(names, best) }
    """
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    np.savez(tmp_path / "val.npz", x=np.eye(2, dtype="f4"), labels=np.array(["cat", "dog"]))

    result = init(tmp_path, "--onnx", tmp_path / "net.onnx", "--data", tmp_path / "val.npz")

    assert "net.onnx: 1.0000 right of 2 items" in result.stdout, result.output


def test_a_transformer_of_pytorch_is_exported_for_texts_of_any_length(tmp_path: Path) -> None:
    """Arguments with a default are inputs if the set has them; named outputs keep their names."""
    pytest.importorskip("torch", reason="pip install torch onnxscript")
    pytest.importorskip("onnxscript", reason="pip install torch onnxscript")
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.embed = torch.nn.Embedding(50, 16)\n"
        "        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)\n"
        "    def forward(self, input_ids=None, mask=None, cache=None):\n"
        "        return {'hidden': self.layer(self.embed(input_ids) * mask.unsqueeze(-1))}\n"
    )
    data = tmp_path / "val.npz"
    np.savez(data, input_ids=np.ones((4, 12), int), mask=np.ones((4, 12), int))
    module = f"{tmp_path / 'net.py'}:Net"

    assert "nothing says which inputs are sent" in init(tmp_path, "--pytorch", module).stderr
    result = init(tmp_path, "--pytorch", module, "--data", data)
    assert result.exit_code == 0, result.output
    said = (tmp_path / CONFIG).read_text()
    assert "takes input_ids int64[?, ?], mask int64[?, ?]" in said
    assert "gives hidden float[?, ?, 16]" in said


@pytest.fixture(scope="module")
def any_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution of 3 x 3 over images of any size, 3 channels to 8, then its mean."""
    make, free = onnx.helper, ("batch", 3, "height", "width")
    graph = make.make_graph(
        [
            make.make_node("Conv", ["image", "weight"], ["seen"], pads=[1, 1, 1, 1]),
            make.make_node("ReduceMean", ["seen", "axes"], ["scores"], keepdims=0),
        ],
        "any-size",
        [make.make_tensor_value_info("image", onnx.TensorProto.FLOAT, free)],
        [make.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", 8])],
        [
            onnx.numpy_helper.from_array(np.ones((8, 3, 3, 3), "float32"), "weight"),
            onnx.numpy_helper.from_array(np.array([2, 3]), "axes"),
        ],
    )
    file = tmp_path_factory.mktemp("any-size") / "net.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=8), file)
    return file


@pytest.mark.parametrize("given", ["--shape", "--data"])
def test_arithmetic_is_counted_at_the_size_of_an_item(
    tmp_path: Path, any_size: Path, given: str
) -> None:
    """Where the file leaves height and width free: as --shape says, or as the samples have it."""
    np.savez(tmp_path / "val.npz", image=np.ones((4, 3, 100, 50)), labels=np.zeros(4))
    value = "3,100,50" if given == "--shape" else tmp_path / "val.npz"
    assert init(tmp_path, "--onnx", any_size, given, value).exit_code == 0
    (variant,) = load(tmp_path / CONFIG).models["net"].variants.values()
    macs = 3 * 3 * 3 * 8 * 100 * 50
    assert variant.profile.gmacs_per_item == pytest.approx(macs / 1e9, rel=0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give those of an item, --shape image=3,224,224"),
        (("--shape", "8,8"), "input image has 3 sizes after the first; 2 were given: 8,8"),
        (("--shape", "picture=3,8,8"), "no input 'picture'; it has image"),
    ],
)
def test_a_size_that_is_not_given_is_requested(
    tmp_path: Path, any_size: Path, words: tuple[str, ...], said: str
) -> None:
    """A count at a made-up size would be a made-up figure."""
    assert said in init(tmp_path, "--onnx", any_size, *words).stderr


def test_the_command_itself_parses_no_file_of_others(
    tmp_path: Path, convnets: Path, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks, validation sets and repositories are read and run by confined processes only."""
    (tmp_path / "models/one/1").mkdir(parents=True)
    (tmp_path / "models/one/config.pbtxt").write_text('backend: "onnxruntime"')
    network = tmp_path / "models/one/1/model.onnx"
    network.write_bytes((convnets / "conv-16.onnx").read_bytes())

    def parse(*_: object, **__: object) -> None:
        pytest.fail("the command parses a file of others")

    for parser in (
        "onnx.load",
        "onnxruntime.InferenceSession.__init__",
        "numpy.load",
        "google.protobuf.text_format.Parse",
    ):
        monkeypatch.setattr(parser, parse)
    words = ("--onnx", network, "--data", samples, "--quantize", "int8")
    assert init(tmp_path / "a", *words).exit_code == 0
    assert init(tmp_path / "b", "--triton-repo", tmp_path / "models").exit_code == 0


def test_a_validation_set_that_grows_without_bound_is_one_sentence(
    tmp_path: Path, convnets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 MB in the file, 1 GiB in memory: the process that reads it is ended, not the machine."""
    monkeypatch.setattr("services.kit.process.confined.memory_bytes", lambda: 2**30)
    with zipfile.ZipFile(tmp_path / "val.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, shape in (("image", (2**22, 64)), ("y", (2**22,))):
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(entry, header)
                for _ in range(math.prod(shape) * 4 // 2**24):
                    entry.write(bytes(2**24))
    words = ("--onnx", convnets / "conv-16.onnx", "--data", tmp_path / "val.npz")
    result = init(tmp_path / "d", *words)
    assert "it takes more than 1024 MiB of memory" in result.stderr


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


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, bytes]], Hub]]:
    """Points the hub's client at a hub here, which has one model, someone/tiny."""
    with ExitStack() as stack:

        def serving(files: dict[str, bytes]) -> Hub:
            hub = stack.enter_context(hub_of("someone/tiny", files))
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            return hub

        yield serving


Serve = Callable[[dict[str, bytes]], Hub]


def test_onnx_files_of_the_hub_are_brought_and_nothing_else(
    tmp_path: Path, any_size: Path, serve: Serve
) -> None:
    """By the hub's own client; code, pickles and other forms of the weights stay where they are."""
    network = any_size.read_bytes()
    others = {"pytorch_model.bin": b"pickle", "modeling.py": b"code", "model.safetensors": b"w"}
    hub = serve({"onnx/model.onnx": network, "README.md": b"text"} | others)

    result = init(tmp_path, "--hf", "someone/tiny", "--shape", "3,8,8")

    assert result.exit_code == 0, result.output
    (variant,) = load(tmp_path / CONFIG).models["tiny"].variants.values()
    assert variant.file == tmp_path / "tiny/onnx/model.onnx"
    assert hub.sent == ["onnx/model.onnx"]


def test_a_file_that_is_not_the_hubs_is_not_kept(tmp_path: Path, serve: Serve) -> None:
    """The hub's list has its SHA-256."""
    hub = serve({"model.onnx": b"another"})
    hub.digests["model.onnx"] = "0" * 64
    result = init(tmp_path, "--hf", "someone/tiny")
    assert "is damaged or another version: its SHA-256 is" in result.stderr, result.output
    assert not (tmp_path / "tiny/model.onnx").exists()


@pytest.mark.parametrize(
    ("files", "name", "said"),
    [
        (("model.safetensors",), "someone/tiny", "optimum-cli export onnx --model someone/tiny"),
        (("tiny-q4.gguf",), "someone/tiny", "`uri: hf://someone/tiny/tiny-q4.gguf` and `runtime:"),
        (("model.onnx",), "someone/tiny/other.onnx", "someone/tiny has no other.onnx"),
        (("model.onnx",), "someone/else", "has no someone/else, or shows it to others only"),
    ],
)
def test_a_repository_without_a_usable_file_is_refused_by_name(
    tmp_path: Path, serve: Serve, files: tuple[str, ...], name: str, said: str
) -> None:
    """The message has what would be usable."""
    hub = serve(dict.fromkeys(files, b"content"))
    assert said in init(tmp_path, "--hf", name).stderr
    assert not hub.sent


def test_a_hub_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, with its address."""
    monkeypatch.setenv("HF_ENDPOINT", address := f"http://127.0.0.1:{free_port()}")
    said = init(tmp_path, "--hf", "someone/tiny").stderr
    assert f"--hf: someone/tiny at {address}: " in said


def test_a_model_larger_than_the_bound_is_not_brought(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its files may be within it: the message names the first."""
    monkeypatch.setattr("services.cli.init.hub.MAX_MIB", 1)
    hub = serve({"model.onnx": b"0" * 900_000, "model.onnx_data": b"0" * 900_000})
    assert (
        "name one file, --hf someone/tiny/model.onnx"
        in init(tmp_path, "--hf", hub.repository).stderr
    )
    assert not hub.sent


@pytest.mark.parametrize(("value", "rounded"), [(0.3, 0.5), (0.1, 0.1), (0.11, 0.2), (6, 10)])
def test_objectives_are_round_numbers(value: float, rounded: float) -> None:
    assert _rounded_up(value) == rounded


def test_the_example_is_still_written_without_models(tmp_path: Path) -> None:
    assert init(tmp_path).exit_code == 0
    assert (tmp_path / CONFIG).read_text() == (ROOT / CONFIG).read_text()


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\n", "\x1b"])
def test_a_name_that_is_not_printable_never_leaves_the_file(tmp_path: Path, character: str) -> None:
    """An input's name that would end a comment, or move a terminal's cursor, is refused."""
    info = [onnx.helper.make_tensor_value_info(n, 1, ["n", 2]) for n in (f"x{character}y: 1", "z")]
    node = onnx.helper.make_node("Relu", [info[0].name], ["z"])
    graph = onnx.helper.make_graph([node], "g", info[:1], info[1:])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "m.onnx"))

    result = init(tmp_path / "d", "--onnx", tmp_path / "m.onnx")
    assert isinstance(result.exception, SystemExit)
    assert "must be printable" in result.output
    assert not (tmp_path / "d" / CONFIG).exists()


def test_an_input_of_any_size_is_one_sentence(tmp_path: Path) -> None:
    """A shape of 2^40 is refused before anything is allocated."""
    info = [onnx.helper.make_tensor_value_info(name, 1, ["n", 2**40]) for name in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", info[:1], info[1:])
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[opset])
    onnx.save(model, str(tmp_path / "m.onnx"))

    result = init(tmp_path / "d", "--onnx", tmp_path / "m.onnx")
    assert isinstance(result.exception, SystemExit)
    assert "values; at most" in result.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r'backend: "onnx\342\200\250runtime"', "printable"),
        ('backend: "onnxruntime" default_model_filename: "../../x.onnx"', "must name a file"),
        ("optimization { " * 3000 + "} " * 3000, "config.pbtxt"),
        ("dynamic_batching { " + "default_queue_policy { " * 3000, "config.pbtxt"),
        ('platform: "ensemble" ensemble_scheduling { step { model_name: "a\\nb" } }', "printable"),
    ],
)
def test_a_hostile_repository_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    """A config.pbtxt ends as a refusal, never as a traceback or another file."""
    (tmp_path / "r/one/1").mkdir(parents=True)
    (tmp_path / "r/one/config.pbtxt").write_text(text)
    result = init(tmp_path / "d", "--triton-repo", tmp_path / "r")
    assert isinstance(result.exception, SystemExit)
    assert said in result.output


def test_only_numbers_are_versions(tmp_path: Path, convnets: Path) -> None:
    """A folder named by a superscript two is no version, as Triton has it."""
    (tmp_path / "r/one/1").mkdir(parents=True)
    (tmp_path / "r/one/\u00b2").mkdir()
    (tmp_path / "r/one/config.pbtxt").write_text('backend: "onnxruntime"')
    (tmp_path / "r/one/1/model.onnx").write_bytes((convnets / "conv-16.onnx").read_bytes())
    assert init(tmp_path / "d", "--triton-repo", tmp_path / "r").exit_code == 0


def test_the_braces_of_a_folder_are_no_field_of_a_command(tmp_path: Path) -> None:
    """A repository in a folder named like a field is served from that folder."""
    folder = tmp_path / "{port}"
    (folder / "one").mkdir(parents=True)
    (folder / "one/config.pbtxt").write_text('backend: "tensorrt"')
    assert init(tmp_path, "--triton-repo", folder, "--gmacs", "one=1").exit_code == 0
    runtime = load(tmp_path / CONFIG).models["one"].variants["one"].runtime
    assert runtime.kind == "external"
    assert f"--model-repository={tmp_path}/{{{{port}}}}" in runtime.command
