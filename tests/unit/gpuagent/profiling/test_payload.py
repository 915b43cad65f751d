"""Requests that the profiler makes up, against the worker's own parser."""

import numpy as np
import pytest

from services.gpuagent.profiling.profiler import load_driver
from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.onnx_engine import Signature, TensorSpec
from services.kit.errors import FailedPrecondition

OUT = (TensorSpec("y", "FP32", (-1, 2)),)


@pytest.mark.parametrize(
    "datatype",
    ["BOOL", "UINT8", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"],
)
def test_every_datatype_makes_a_request_that_a_worker_takes(datatype: str) -> None:
    """Free dimensions besides the first are 1."""
    signature = Signature((TensorSpec("x", datatype, (-1, 3, -1)),), OUT)
    data = load_driver.request(tensor_messages.metadata(signature), "m", 5)
    inference = tensor_messages.parse(data, signature)

    assert (inference.model, inference.items) == ("m", 5)
    assert inference.feeds["x"].shape == (5, 3, 1)


def test_floats_are_drawn_and_equal_seeds_draw_equal_ones() -> None:
    """All zeros would flatter hardware that skips them."""
    signature = Signature((TensorSpec("x", "FP32", (-1, 64)),), OUT)
    metadata = tensor_messages.metadata(signature)
    one = tensor_messages.parse(load_driver.request(metadata, "m", 2), signature).feeds["x"]
    assert len(np.unique(one)) > 100
    assert load_driver.request(metadata, "m", 2) == load_driver.request(metadata, "m", 2)


def test_a_model_of_a_fixed_batch_runs_that_one_only() -> None:
    signature = Signature((TensorSpec("x", "FP32", (1, 4)),), (TensorSpec("y", "FP32", (1, 4)),))
    metadata = tensor_messages.metadata(signature)
    assert tensor_messages.parse(load_driver.request(metadata, "m", 1), signature).items == 1
    with pytest.raises(FailedPrecondition, match="takes batches of 1 only") as caught:
        load_driver.request(metadata, "m", 2)
    assert caught.value.reason == "FIXED_BATCH"
