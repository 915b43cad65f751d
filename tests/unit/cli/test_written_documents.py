"""Deployment files that commands write: what others call their models and tensors is data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml.comments import CommentedMap

from services.cli.init.devices import Devices
from services.cli.init.document import NewModel, NewVariant, Place, deployment
from services.cli.init.network import Network, Tensor
from services.cli.yaml_file import round_trip, written
from services.kit.errors import InvalidArgument
from tests.support.examples import examples
from tests.support.hostile_names import NAMES

FOLDER = Path("/deployments/one")


def model(tensor: str, file: str, variant: str, word: str) -> NewModel:
    network = Network(
        file=FOLDER / file,
        inputs=(Tensor(tensor, "tensor(float)", (None, 3)),),
        outputs=(Tensor(tensor[::-1], tensor, (None,)),),
        gmacs_per_item=1.0,
        weights_mib=1.0,
        item_mib=1.0,
        items={},
        fixed_batch=1,
        alone="it takes 1 item at a time",
        latency_s=0.01,
    )
    runtime = {"kind": "external", "command": [word], "environment": {word: word}}
    return NewModel({variant: NewVariant(network, None, 1.0, 1, runtime)})


def read(name: str, made: NewModel, product: str) -> Mapping[str, Any]:
    place = Place(Devices({product: product}, 2), control=False)
    found: Mapping[str, Any] = yaml.safe_load(deployment({name: made}, place, FOLDER))
    return found


@examples(0.25)
@given(NAMES, NAMES, NAMES, NAMES)
@example("x\u2028models: {}", "x", "x", "x")
@example("x", "a\u2028b: c", "on", "#\n")
def test_a_deployment_is_read_as_it_was_meant(
    tensor: str, name: str, variant: str, word: str
) -> None:
    """Hostile names change nothing but the values that they are: no key comes, goes or changes."""
    meant = read("model", model("tensor", "file", "variant", "word"), "product")
    found = read(name, model(tensor, "file", variant, word), word)

    assert list(found["models"]) == [name]
    assert list(found["models"][name]["variants"]) == [variant]
    section = found["models"].pop(name)["variants"].pop(variant)
    assert section.pop("runtime") == {
        "kind": "external",
        "command": [word],
        "environment": {word: word},
    }
    assert found["nodes"]["node-0"].pop("gpus") == [word]

    expected = meant["models"].pop("model")["variants"].pop("variant")
    del expected["runtime"], meant["nodes"]["node-0"]["gpus"]
    assert section == expected
    assert found == meant


@examples(0.25)
@given(NAMES.filter(lambda name: "/" not in name and "\x00" not in name))
def test_the_name_of_a_file_is_read_as_this_name(name: str) -> None:
    """A file's name is the path that is loaded, also where it looks like YAML."""
    file = (FOLDER / "models" / name / "x.onnx").as_posix()
    found = read("model", model("t", file, "v", "w"), "p")
    assert FOLDER / found["models"]["model"]["variants"]["v"]["file"] == Path(file).resolve()


def test_a_comment_that_becomes_a_key_is_not_written() -> None:
    """Any writer is checked: a line that a comment begins, and YAML 1.1 ends, is refused."""
    document = CommentedMap(models=CommentedMap(one=1))
    document["models"].yaml_add_eol_comment("one\u2028  two: 2", "one")
    with pytest.raises(InvalidArgument, match="models"):
        written(document)


def test_an_authors_words_of_yaml_1_1_stay() -> None:
    """A file that is changed in place keeps words that are text in YAML 1.2 only."""
    text = "insecure: yes\nmode: 0777\nsince: 2001-01-01\n"
    assert written(round_trip().load(text)) == text


def test_the_name_of_a_file_that_is_not_unicode_is_refused() -> None:
    """Bytes that no text has cannot be written as UTF-8: a sentence, no traceback."""
    with pytest.raises(InvalidArgument, match="Unicode"):
        read("model", model("t", "\udcff.onnx", "v", "w"), "p")


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(1e-6)
def test_a_number_is_read_as_this_number(value: float) -> None:
    """Also by readers of YAML 1.1, where 1e-06 is a text."""
    assert yaml.safe_load(written(CommentedMap(x=value))) == {"x": value}
