"""The demo's models: real, repeatable, and as accurate as the deployment file says."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from services.kit.config.loader import load
from services.local.demo import model_family
from services.local.demo.digits import held_out, split
from tests.support.paths import ROOT


def test_held_out_images_are_no_training_images() -> None:
    images, labels = held_out()
    assert images.shape == (719, 64)
    assert images.dtype == np.float32
    assert len(split().training_images) == 1078
    assert np.bincount(labels).min() > 60, "stratified: every digit is there"
    training = {image.tobytes() for image in split().training_images}
    assert not any(image.tobytes() in training for image in images)


def test_cinquefoil_yaml_states_the_measured_accuracies(digits_models: Path) -> None:
    """The file that ships cannot drift from what training gives."""
    variants = load(ROOT / "cinquefoil.yaml").models["digits"].variants
    measured = model_family.read_accuracy(digits_models)
    assert measured is not None
    assert variants.keys() == measured.keys()
    for name, variant in variants.items():
        assert variant.accuracy == pytest.approx(measured[name], abs=0.002)


@pytest.mark.parametrize("name", model_family.FAMILY)
def test_every_variant_has_the_same_tensors_and_answers_batches(
    digits_models: Path, name: str
) -> None:
    images, labels = held_out()
    session = onnxruntime.InferenceSession(
        model_family.path(digits_models, name).read_bytes(), providers=["CPUExecutionProvider"]
    )
    assert [(i.name, i.type) for i in session.get_inputs()] == [("image", "tensor(float)")]
    label, scores = session.run(["label", "scores"], {"image": images})
    assert (label.dtype, scores.dtype) == (np.int64, np.float32)
    assert (label.shape, scores.shape) == ((719,), (719, 10))
    assert np.mean(label == labels) > 0.8
    alone = session.run(["label"], {"image": images[:1]})[0]
    assert alone.tolist() == label[:1].tolist()


def test_the_family_grows_more_accurate_in_its_order(digits_models: Path) -> None:
    accuracy = model_family.read_accuracy(digits_models)
    assert accuracy is not None
    ordered = [accuracy[name] for name in model_family.FAMILY]
    assert ordered == sorted(ordered)
    assert len(set(ordered)) == len(ordered) >= 4


@pytest.mark.parametrize("name", ["tree", "linear", "mlp-64", "svc"])
def test_training_twice_gives_the_same_answers(digits_models: Path, name: str) -> None:
    images, _ = held_out()

    def answers(model: bytes) -> list[int]:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        labels: list[int] = session.run(["label"], {"image": images})[0].tolist()
        return labels

    assert answers(model_family.build(name)) == answers(
        model_family.path(digits_models, name).read_bytes()
    )


def test_a_complete_folder_is_reused(digits_models: Path) -> None:
    said: list[str] = []
    assert model_family.train(digits_models, said.append) == model_family.read_accuracy(
        digits_models
    )
    assert said == [], "nothing was trained"


def test_a_folder_of_other_library_versions_is_not_reused(
    digits_models: Path, tmp_path: Path
) -> None:
    text = (digits_models / model_family.ACCURACY_FILE).read_text()
    assert model_family.read_accuracy(digits_models) is not None
    (tmp_path / model_family.ACCURACY_FILE).write_text(
        text.replace('"onnxruntime": "', '"other": "')
    )
    assert model_family.read_accuracy(tmp_path) is None
    (tmp_path / model_family.ACCURACY_FILE).write_text("{")
    assert model_family.read_accuracy(tmp_path) is None
