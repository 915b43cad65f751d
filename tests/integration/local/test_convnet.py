"""The demo's networks that cost real time: answers as the others', more accurate where wider."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from services.local.demo import model_family
from services.local.demo.digits import held_out

pytestmark = pytest.mark.timeout(240)  # once on a machine the networks are trained

NARROW, WIDE = "conv-16", "conv-128"


@pytest.mark.parametrize("name", [NARROW, WIDE])
def test_a_network_has_the_familys_tensors_and_answers_batches(convnets: Path, name: str) -> None:
    images, labels = held_out()
    session = onnxruntime.InferenceSession(
        model_family.path(convnets, name).read_bytes(), providers=["CPUExecutionProvider"]
    )
    assert [(i.name, i.type) for i in session.get_inputs()] == [("image", "tensor(float)")]
    label, scores = session.run(["label", "scores"], {"image": images})
    assert (label.dtype, scores.dtype) == (np.int64, np.float32)
    assert (label.shape, scores.shape) == ((719,), (719, 10))
    assert np.mean(label == labels) > 0.97
    alone = session.run(["label"], {"image": images[:1]})[0]
    assert alone.tolist() == label[:1].tolist()


def test_wider_is_more_accurate(convnets: Path) -> None:
    accuracy = model_family.read_accuracy(convnets)
    assert accuracy is not None
    assert accuracy[NARROW] < accuracy[WIDE]


def test_training_more_variants_keeps_those_that_are_there(tmp_path: Path) -> None:
    said: list[object] = []
    first = model_family.train(tmp_path, said.append, ["linear"])
    written = model_family.path(tmp_path, "linear").stat().st_mtime_ns
    both = model_family.train(tmp_path, said.append, ["linear", NARROW])
    assert both.keys() == {"linear", NARROW}
    assert both["linear"] == first["linear"]
    assert model_family.path(tmp_path, "linear").stat().st_mtime_ns == written
    assert len(said) == 2
