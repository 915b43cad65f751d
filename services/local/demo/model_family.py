"""A family of real models for one task, from cheap to accurate, as ONNX files.

All take `image`, float32 [-1, 64], and give `label`, int64 [-1], and `scores`, float32 [-1, 10].
Fits are seeded, and gave the same accuracies with four generations of linear-algebra kernels.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from services.local.demo import convnet
from services.local.demo.digits import split

ACCURACY_FILE: Final = "accuracy.json"

FAMILY: Final = ("tree", "linear", "mlp-64", "mlp-512", "svc")
"""Classifiers, by variant name, in order of accuracy."""

CONVNETS: Final[Mapping[str, int]] = {"conv-16": 16, "conv-128": 128, "conv-384": 384}
"""Filters by variant name, in order of accuracy: what takes milliseconds of a CPU core."""


def build(name: str) -> bytes:
    """Train one variant and return it as a serialized ONNX model."""
    if name in CONVNETS:
        return convnet.build(CONVNETS[name])
    # scikit-learn takes a second to import: not where all models are there.
    from services.local.demo import classifiers  # noqa: PLC0415

    return classifiers.build(name)


def measure(model: bytes) -> float:
    """Return a model's share of right answers on the held-out images, by ONNX Runtime."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (labels,) = session.run(["label"], {"image": split().held_out_images})
    return float(np.mean(labels == split().held_out_labels))


def train(
    folder: Path,
    say: Callable[[str], object] = lambda _: None,
    names: Iterable[str] = FAMILY,
) -> dict[str, float]:
    """Make sure that `folder` holds variants; return the measured accuracy of all that it holds.

    What is there is reused if it was made by the same versions of the libraries. `accuracy.json` is
    written last, so what it names is complete.
    """
    accuracy = read_accuracy(folder) or {}
    missing = [n for n in names if n not in accuracy or not path(folder, n).exists()]
    if not missing:
        return accuracy
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ACCURACY_FILE).unlink(missing_ok=True)
    for name in missing:
        model = build(name)
        _write(path(folder, name), model)
        accuracy[name] = measure(model)
        say(f"trained {name}: {accuracy[name]:.4f} of {len(split().held_out_labels)} held-out")
    document = {"made_by": _made_by(), "accuracy": accuracy}
    _write(folder / ACCURACY_FILE, json.dumps(document, indent=2).encode())
    return accuracy


def path(folder: Path, name: str) -> Path:
    """Return a variant's file."""
    return folder / f"{name}.onnx"


def read_accuracy(folder: Path) -> dict[str, float] | None:
    """Return the accuracies measured when the folder was made; None: they cannot be reused."""
    try:
        document = json.loads((folder / ACCURACY_FILE).read_bytes())
        accuracy: dict[str, float] = document["accuracy"]
        return accuracy if document["made_by"] == _made_by() else None
    except (OSError, ValueError, KeyError):
        return None


def _made_by() -> dict[str, str]:
    return {name: version(name) for name in ("scikit-learn", "skl2onnx", "onnxruntime", "numpy")}


def _write(target: Path, content: bytes) -> None:
    partial = target.with_suffix(f".{os.getpid()}.part")
    partial.write_bytes(content)
    partial.replace(target)
