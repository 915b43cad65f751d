"""The scores of a scikit-learn classifier, which its ONNX file gives as a map for each item.

Source: ONNX, "ai.onnx.ml", ZipMap; sklearn-onnx, "Choose appropriate output of a classifier".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAPS: Final = frozenset({"seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))"})
"""ONNX Runtime's names of such outputs."""


def scores(maps: Sequence[Mapping[Any, float]]) -> NDArray[np.float32]:
    """Return a row for each item, a column for each class in the order of sorted labels."""
    labels = sorted(maps[0]) if maps else []
    rows = [[each[label] for label in labels] for each in maps]
    return np.array(rows, np.float32).reshape(len(maps), len(labels))
