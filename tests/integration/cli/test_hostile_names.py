"""Names of others from their files to the deployment: read back, they are what was meant.

HOSTILE_NAMES=100000 pytest tests/integration/cli/test_hostile_names.py
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from onnx import helper
from typer.testing import CliRunner, Result

from inference.model_config_pb2 import ModelConfig
from services.cli.init.devices import Devices
from services.cli.init.document import NewModel, NewVariant, Place, deployment
from services.cli.init.hub import Wanted, _chosen
from services.cli.init.inputs import KnownInputs
from services.cli.init.network import Network, examine
from services.cli.init.triton_repository import CONFIG, RepositoryModel, read_repository
from services.cli.main import app
from services.cli.yaml_file import save
from services.kit.config import Deployment, ExternalRuntime
from services.kit.config.loader import DEFAULT_FILE, load
from services.kit.errors import InvalidArgument
from services.kit.operators import onnx_reader
from tests.support.hostile_names import drawn

COUNT = int(os.environ.get("HOSTILE_NAMES", "400"))
A_FILE = 100
"""Names in one network, or one repository."""

KNOWN = KnownInputs({}, None)
PLACE = Place(Devices({}, 2), control=False)
BENIGN = "tensor"


def test_names_inside_a_network_stay_data(tmp_path: Path) -> None:
    """Of inputs, outputs, operators, sizes and metadata: refused, or read back as was meant."""
    taken = [*_taken(partial(_read_one, tmp_path), drawn(COUNT, seed=1))]
    assert all(each.isprintable() for each in taken)
    assert len(taken) > COUNT / 4

    @cache
    def benign(count: int) -> dict[str, Any]:
        names = [f"{BENIGN} {at}" for at in range(count)]
        return _read_back(tmp_path, _examined(tmp_path, names))

    for some in _batches([*dict.fromkeys(taken)]):
        hostile = _examined(tmp_path, some)
        assert [each.name for each in hostile.inputs] == [f"{name}+" for name in some]
        assert _read_back(tmp_path, hostile) == benign(len(some))


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + A_FILE] for at in range(0, len(names), A_FILE))


def _taken(read: Callable[[str], object], names: Iterable[str]) -> Iterator[str]:
    """Yield the names that a parser takes; what it says of the others is one printable line."""
    for name in names:
        said = ""
        try:
            read(name)
        except InvalidArgument as error:
            said = error.message
        assert said.isprintable()
        if not said:
            yield name


def _network(names: Sequence[str]) -> onnx.ModelProto:
    """Return a network in which everything that has a name has one of these."""
    inputs = [helper.make_tensor_value_info(f"{name}+", 1, [name, 2]) for name in names]
    outputs = [helper.make_tensor_value_info(f"{name}-", 1, [name, 2]) for name in names]
    nodes = [helper.make_node("Relu", [f"{n}+"], [f"{n}-"], name=n) for n in names]
    graph = helper.make_graph(nodes, names[0], inputs, outputs, doc_string=names[0])
    opset = helper.make_opsetid("", 17)
    made = helper.make_model(
        graph, ir_version=8, opset_imports=[opset], producer_name=names[0], doc_string=names[0]
    )
    helper.set_model_props(made, dict.fromkeys(names[:1], names[0]))
    return made


def _read_one(folder: Path, name: str) -> None:
    file = folder / "one.onnx"
    file.write_bytes(_network([name]).SerializeToString())
    onnx_reader.load(file)


def _examined(folder: Path, names: Sequence[str]) -> Network:
    file = folder / "many.onnx"
    file.write_bytes(_network(names).SerializeToString())
    return replace(examine(file, KNOWN), latency_s=0.01)


def _read_back(folder: Path, network: Network) -> dict[str, Any]:
    return _loaded(folder, {"model": NewModel({"variant": NewVariant.of(network, None)})})[0]


def _loaded(folder: Path, models: dict[str, NewModel]) -> tuple[dict[str, Any], Deployment]:
    """Write a deployment as `init` does, and return it as services read it."""
    path = folder / DEFAULT_FILE
    save(path, deployment(models, PLACE, folder))
    found = load(path)
    return found.model_dump(), found


def test_names_inside_a_triton_repository_stay_data(tmp_path: Path) -> None:
    """Of folders, backends, files and steps; the server is started for the folder that is there."""
    words = dict.fromkeys(
        name for name in drawn(COUNT, seed=2)
        if "/" not in name and "\x00" not in name and len(name.encode()) < 250
        and name not in {".", ".."}
    )  # fmt: skip
    taken = [*_taken(partial(_read_repository, tmp_path), words)]
    assert all(each.isprintable() for each in taken)
    assert len(taken) > len(words) / 4
    for number, some in enumerate(_batches(taken)):
        folder = tmp_path / f"r{number}"
        for name in some:
            _add_model(folder, name)
        found = {each.name: each for each in read_repository(folder).models}
        assert set(found) == set(some)
        _, loaded = _loaded(tmp_path, {f"m{at}": _served(found[n]) for at, n in enumerate(some)})
        for at, name in enumerate(some):
            runtime = loaded.models[f"m{at}"].variants["v"].runtime
            assert isinstance(runtime, ExternalRuntime)
            assert (runtime.model_name, runtime.command) == (name, ("serve", name, "{port}"))


def _add_model(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    config = ModelConfig(name=name, backend=name, platform=name)
    (folder / name / CONFIG).write_text(text_format.MessageToString(config, as_utf8=True))


def _read_repository(folder: Path, name: str) -> None:
    _add_model(folder / "one", name)
    try:
        read_repository(folder / "one")
    finally:
        (folder / "one" / name / CONFIG).unlink()
        (folder / "one" / name).rmdir()


def _served(model: RepositoryModel) -> NewModel:
    command = ["serve", model.name, "{port}"]
    runtime = {"kind": "external", "command": command, "model_name": model.name}
    return NewModel({"v": NewVariant(None, None, 1.0, 1, runtime)})


def test_names_of_a_hubs_files_stay_data() -> None:
    """A repository with a name that is not printable is refused; others are taken as they are."""
    size = SimpleNamespace(size=1, lfs=SimpleNamespace(sha256="0" * 64))

    def chosen(name: str) -> None:
        files = [SimpleNamespace(rfilename=f"{each}.onnx", **vars(size)) for each in ("a", name)]
        found = _chosen(Wanted("some/one", None, None), files)
        assert {each.rfilename for each in found} <= {f"{name}.onnx", "a.onnx"}

    taken = [*_taken(chosen, drawn(COUNT, seed=3))]
    assert all(each.isprintable() for each in taken)
    assert len(taken) > COUNT / 4


def init(folder: Path, *words: object) -> Result:
    return CliRunner().invoke(app, ["init", str(folder), "--no-control", *map(str, words)])


@pytest.mark.usefixtures("forked_readers")
def test_a_folder_of_hostile_files_is_a_model_of_these_files(tmp_path: Path) -> None:
    """By the command itself: files whose names are YAML, with arrays for a hostile input."""
    some = [each for each in dict.fromkeys(drawn(40, seed=4)) if each.isprintable()]
    names = [each for each in some if "/" not in each and len(each.encode()) < 120][:3]
    inputs = "x: #{port}"
    for at, name in enumerate(names):
        onnx.save(_network([inputs]), tmp_path / f"{at}{name}.onnx")
    arrays: dict[str, Any] = {f"{inputs}+": np.eye(2, dtype="f4"), "y": np.arange(2)}
    np.savez(tmp_path / "val.npz", **arrays)

    result = init(tmp_path / "d", "--hf", tmp_path, "--data", tmp_path / "val.npz")

    assert result.exit_code == 0, result.output
    (model,) = load(tmp_path / "d" / DEFAULT_FILE).models.values()
    assert {each.file for each in model.variants.values()} == {*tmp_path.glob("*.onnx")}


@pytest.mark.parametrize("content", [b"x\xff\xfe", b"x\xed\xa0\x80"])
def test_bytes_that_are_not_text_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    """A surrogate, or half a character, where a name should be."""
    written = (
        _network(["a" * len(content)]).SerializeToString().replace(b"a" * len(content), content)
    )
    (tmp_path / "m.onnx").write_bytes(written)
    result = init(tmp_path / "d", "--onnx", tmp_path / "m.onnx")
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.count("\n") == 1
    assert "m.onnx" in result.stderr


def test_names_of_arrays_are_shown_as_one_line(tmp_path: Path) -> None:
    """The names of arrays in a validation set cannot move a terminal's cursor."""
    onnx.save(_network(["x"]), tmp_path / "m.onnx")
    arrays: dict[str, Any] = {"a\x1b[2J\u2028b": np.eye(2), "c": np.eye(2)}
    np.savez(tmp_path / "val.npz", **arrays)
    result = init(tmp_path / "d", "--onnx", tmp_path / "m.onnx", "--data", tmp_path / "val.npz")
    assert "no array for input" in result.stderr
    assert result.stderr.rstrip("\n").isprintable()
