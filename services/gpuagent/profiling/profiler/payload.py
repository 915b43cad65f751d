"""Requests to measure with, made from what a model says of its inputs."""

from __future__ import annotations

from typing import Final

import numpy as np

from inference import grpc_service_pb2 as oip
from services.gpuagent.worker import tensors
from services.gpuagent.worker.tensors import Array
from services.kit.errors import FailedPrecondition

_FLOATS: Final = ("FP16", "FP32", "FP64")


def request(metadata: bytes, model: str, items: int, *, seed: int = 0) -> bytes:
    """Return a serialized ModelInferRequest of `items` items.

    Floats are drawn from [0, 1); all else is 0, a valid index and token. Free dimensions besides
    the first are 1.

    Args:
        metadata: A serialized ModelMetadataResponse.
        model: What clients call it.
        items: First dimension of every input, >= 1.
        seed: Of the floats.

    Raises:
        FailedPrecondition: The model takes another number of items only.
    """
    described = oip.ModelMetadataResponse.FromString(metadata)
    generator = np.random.default_rng(seed)
    message = oip.ModelInferRequest(model_name=model)
    for tensor in described.inputs:
        first, *rest = tensor.shape or (items,)
        if first not in (-1, items):
            raise FailedPrecondition(
                f"{model} takes batches of {first} only: its input {tensor.name!r} has a first "
                "dimension that is fixed",
                reason="FIXED_BATCH",
            )
        shape = [items, *(max(size, 1) for size in rest)] if tensor.shape else []
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        array = _values(tensor.datatype, shape, generator)
        message.raw_input_contents.append(tensors.encode(array, tensor.datatype))
    return message.SerializeToString()


def _values(datatype: str, shape: list[int], generator: np.random.Generator) -> Array:
    if datatype in _FLOATS:
        return generator.random(shape)
    if datatype == tensors.BYTES:
        return np.full(shape, "", dtype=object)
    return np.zeros(shape)
