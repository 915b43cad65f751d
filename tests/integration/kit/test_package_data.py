"""Weights of packages: read by path after a comparison of digests, with nothing imported."""

import hashlib
import sys
from pathlib import Path

import pytest

from services.kit.errors import FailedPrecondition
from services.kit.package_data import package_file, require_sha256
from services.predictor.embedding import minilm

DATA = b"weights"
DIGEST = hashlib.sha256(DATA).hexdigest()


def _decoy(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes) -> Path:
    """Return the data file of an installed package whose code must not run."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    file = package / "model.onnx"
    file.write_bytes(data)
    monkeypatch.syspath_prepend(str(folder))
    return file


def test_a_file_is_found_and_its_package_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's code would end the test."""
    file = _decoy(tmp_path, monkeypatch, "decoy_weights", DATA)
    assert package_file("decoy_weights/model.onnx", DIGEST.upper()) == file
    assert "decoy_weights" not in sys.modules


def test_a_damaged_file_is_refused_with_the_name_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _decoy(tmp_path, monkeypatch, "decoy_weights", DATA + b"!")
    with pytest.raises(FailedPrecondition, match=f"package decoy_weights: .*expected {DIGEST}"):
        package_file("decoy_weights/model.onnx", DIGEST)


def test_the_predictor_refuses_another_network_than_the_one_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of the expected name, found first: neither its code nor its file is used."""
    package = minilm.RESOURCE.partition("/")[0]
    _decoy(tmp_path, monkeypatch, package, DATA)
    with pytest.raises(FailedPrecondition, match=f"package {package}: .*damaged"):
        minilm.MiniLm()


@pytest.mark.parametrize("resource", ["no_such_package/x", "services/none.bin", "typer/"])
def test_what_is_not_there_is_named(resource: str) -> None:
    with pytest.raises(FailedPrecondition, match=resource.partition("/")[0]):
        package_file(resource, DIGEST)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"none\.gguf: No such file"):
        require_sha256(tmp_path / "none.gguf", DIGEST)
