"""PP-PicoDet of document layouts, with its decoding and NMS; and pages whose boxes are known."""

from typing import Any

import matplotlib as mpl
import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 608, 800
STRIDES = (8, 16, 32, 64)
TEXT, TITLE = 0, 1
WORDS = ("carbon", "falls", "while", "latency", "objectives", "hold", "and", "accurate", "variants")

DECODED = """
<ir_version: 10, opset_import: ["": 21]>
decode (float[1, n, 10] cls, float[1, n, 32] reg)
=> (float[kept, 4] boxes, float[kept] scores, int64[kept] labels)
<int64[4] bins = {1, -1, 4, 8}, int64[1] last = {-1}, int64 most = {100}, float overlap = {0.5},
 float least = {0.5}, int64[1] row = {2}, int64[1] kind = {1}, int64[1] across = {1}>
{
  split = Reshape (reg, bins)
  shares = Softmax <axis = -1> (split)
  weighted = Mul (shares, steps)
  summed = ReduceSum <keepdims = 0> (weighted, last)
  pixels = Mul (summed, strides)
  signed = Mul (pixels, signs)
  corners = Add (signed, centres)
  by_class = Transpose <perm = [0, 2, 1]> (cls)
  kept = NonMaxSuppression (corners, by_class, most, overlap, least)
  rows = Gather <axis = 1> (kept, row)
  kinds = Gather <axis = 1> (kept, kind)
  flat = Squeeze (corners)
  places = Squeeze (rows, across)
  labels = Squeeze (kinds, across)
  boxes = Gather (flat, places)
  sure = ReduceMax <keepdims = 0> (cls, last)
  known = Squeeze (sure)
  scores = Gather (known, places)
}
"""
"""Distances of a box's sides from its centre are means of 8 bins, in strides (Yu et al., 2021)."""


def with_boxes(file: bytes) -> bytes:
    """Return a detector whose outputs become boxes, scores and labels."""
    network = onnx.load_from_string(file)
    outputs = [each.name for each in network.graph.output]
    graph = onnx.parser.parse_model(DECODED).graph
    nodes = [
        onnx.helper.make_node("Concat", outputs[:4], ["cls"], axis=1),
        onnx.helper.make_node("Concat", outputs[4:], ["reg"], axis=1),
    ]
    network.graph.node.extend([*nodes, *graph.node])
    network.graph.initializer.extend([*graph.initializer, *constants()])
    del network.graph.output[:]
    network.graph.output.extend(graph.output)
    network = onnx.version_converter.convert_version(network, 21)
    return network.SerializeToString()


def constants() -> list[onnx.TensorProto]:
    """Return where the cells' centres are, and their strides, of all four levels."""
    centres, strides = [], []
    for stride in STRIDES:
        rows, columns = np.mgrid[: -(-HEIGHT // stride), : -(-WIDTH // stride)]
        x, y = ((each.ravel() + 0.5) * stride for each in (columns, rows))
        centres.append(np.stack([x, y, x, y], 1))
        strides.append(np.full((len(x), 1), stride))
    arrays = {
        "centres": np.concatenate(centres)[None],
        "strides": np.concatenate(strides)[None],
        "signs": np.array([-1, -1, 1, 1]),
        "steps": np.arange(8),
    }
    return [numpy_helper.from_array(each.astype("f4"), name) for name, each in arrays.items()]


def page(seed: int) -> tuple[Any, Any]:
    """Return a page as the detector takes it, and its title and paragraphs: box and class."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, y = ImageDraw.Draw(image), int(random.integers(40, 80))
    large, small = (
        ImageFont.truetype(f"{mpl.get_data_path()}/fonts/ttf/DejaVuSerif.ttf", size)
        for size in (26, 13)
    )
    at = int(random.integers(90, 140)), y
    draw.text(at, "Serving with less carbon", fill="black", font=large)
    boxes = [(*draw.textbbox(at, "Serving with less carbon", font=large), TITLE)]
    y += 60
    for _ in range(3):
        top, right = y, 0.0
        for _ in range(int(random.integers(5, 9))):
            line = " ".join(random.choice(WORDS, 12))[:64]
            draw.text((50, y), line, fill="black", font=small)
            right, y = max(right, draw.textbbox((50, y), line, font=small)[2]), y + 18
        boxes.append((50, top, right, y, TEXT))
        y += 40
    pixels = np.asarray(image, "f4") / 255
    scaled = (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    return scaled.transpose(2, 0, 1).astype("f4"), np.array(boxes, "f4")
