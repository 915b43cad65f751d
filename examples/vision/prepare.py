"""Write what `cinquefoil init` needs: a real network, a pruned form of it, and labelled images.

The network is PP-OCR's text-direction classifier (Y. Du et al., "PP-OCR", 2020; Apache-2.0), a
MobileNetV3 that the package rapidocr-onnxruntime carries: is a line of text upright, or upside
down? The images are lines of words that are drawn here, in fonts that matplotlib carries.

It is pruned by depth: the residual block without which it errs least, on other lines, is left out,
so that less is computed; weights stay as they are.
"""

import random
import string
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import utils
from PIL import Image, ImageDraw, ImageFont

HEIGHT, WIDTH = 48, 192
LEFT_OUT: Final = 1
"""Residual blocks that the pruned network lacks."""

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def lines(count: int, seed: int) -> tuple[Images, Labels]:
    """Return images of lines, shape (count, 3, 48, 192), -1..1, and labels: 0 upright, 1 not."""
    rng = random.Random(seed)  # noqa: S311 - no secrets
    fonts = sorted((Path(mpl.get_data_path()) / "fonts/ttf").glob("DejaVu*.ttf"))
    labels = [rng.randrange(2) for _ in range(count)]
    return np.stack([_line(rng, rng.choice(fonts), label) for label in labels]), np.array(labels)


def _line(rng: random.Random, font: Path, label: int) -> Images:
    """Draw a line, dark on light, cut out as a text detector does, with some noise."""
    words = ("".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 7))) for _ in range(3))
    text = " ".join(words).title()
    face = ImageFont.truetype(str(font), 36)
    left, top, right, bottom = face.getbbox(text)
    paper = rng.randint(170, 255)
    image = Image.new("L", (int(right - left) + 12, int(bottom - top) + 12), paper)
    ImageDraw.Draw(image).text((6 - left, 6 - top), text, fill=rng.randint(0, 110), font=face)
    image = image.rotate(rng.uniform(-2, 2) + 180 * label, fillcolor=paper)
    width = min(WIDTH, image.width * HEIGHT // image.height)
    noise = np.random.default_rng(rng.getrandbits(32)).normal(
        0, rng.uniform(2, 15), (HEIGHT, width)
    )
    grey = np.clip(np.asarray(image.resize((width, HEIGHT))) + noise, 0, 255) / 127.5 - 1
    padded = np.zeros((3, HEIGHT, WIDTH), np.float32)
    padded[:, :, :width] = grey
    return padded


def pruned(model: onnx.ModelProto, images: Images, labels: Labels) -> onnx.ModelProto:
    """Return the network without the blocks that it needs least, found one after the other."""
    for _ in range(LEFT_OUT):
        tried = [without(model, number) for number in range(len(_adds(model)))]
        model = max(tried, key=lambda each: accuracy(each, images, labels))
    return model


def _adds(model: onnx.ModelProto) -> list[Any]:
    """Return the additions that end a residual block: its last layer's output, and what entered."""
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    return [
        node
        for node in model.graph.node
        if node.op_type == "Add"
        and all(made.get(name) in {"Add", "BatchNormalization"} for name in node.input)
    ]


def without(model: onnx.ModelProto, number: int) -> onnx.ModelProto:
    """Return the network without a residual block: what enters it takes the place of its sum."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    add = _adds(copy)[number]
    order = {name: n for n, node in enumerate(copy.graph.node) for name in node.output}
    entering = min(add.input, key=order.__getitem__)
    for node in copy.graph.node:
        node.input[:] = [entering if name == add.output[0] else name for name in node.input]
    names = [value.name for value in copy.graph.input], [value.name for value in copy.graph.output]
    return utils.Extractor(copy).extract_model(*names)


def accuracy(model: onnx.ModelProto, images: Images, labels: Labels) -> float:
    """Return the share of right answers."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (scores,) = session.run(None, {session.get_inputs()[0].name: images})
    return float((scores.argmax(axis=1) == labels).mean())


def main() -> None:
    """Write direction.onnx, direction-pruned.onnx and val.npz."""
    # Only its files: to import the package takes all that it needs to read pages.
    package = Path(str(distribution("rapidocr-onnxruntime").locate_file("rapidocr_onnxruntime")))
    model = onnx.load(package / "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    free = model.graph.input[0].type.tensor_type.shape.dim[2:]
    for dimension, size in zip(free, (HEIGHT, WIDTH), strict=True):
        dimension.dim_value = size  # else nothing says how much is computed
    images, labels = lines(800, seed=0)
    small = pruned(model, *lines(100, seed=1))
    onnx.save(model, "direction.onnx")
    onnx.save(small, "direction-pruned.onnx")
    np.savez_compressed("val.npz", x=images, labels=labels)
    for name, each in (("direction", model), ("direction-pruned", small)):
        print(f"{name}: {accuracy(each, images, labels):.4f} of {len(labels)} lines")


if __name__ == "__main__":
    main()
