"""Arithmetic speed of one core, which the analytic profile needs without a measured one.

The file is one ONNX MatMul of two 256 x 256 float32 inputs, run by the same ONNX Runtime, in one
thread: what it reaches bounds what a network's layers reach.
"""

import time
from importlib import resources
from typing import Final

import numpy as np

SIZE: Final = 256
MOST_S: Final = 0.4
_FILE = resources.files("services.gpuagent.devices.cpu") / "matmul.onnx"


def gmacs_per_s(most_s: float = MOST_S) -> float:
    """Return the multiply-accumulates of one core per second, 1e9, of the best of many tries.

    Blocks for `most_s`.
    """
    import onnxruntime as ort  # noqa: PLC0415  # agents of GPUs start without it

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(_FILE.read_bytes(), options, providers=["CPUExecutionProvider"])
    ones = np.ones((SIZE, SIZE), dtype=np.float32)
    best_s, ends_s = float("inf"), time.perf_counter() + most_s
    while (began_s := time.perf_counter()) < ends_s:
        session.run(None, {"a": ones, "b": ones})
        best_s = min(best_s, time.perf_counter() - began_s)
    return SIZE**3 / best_s / 1e9
