"""The classification extension: the highest values of an output instead of all of them.

Source: Triton, "Classification Extension".
"""

from typing import Final

import numpy as np

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker.tensors import Array
from services.kit.errors import InvalidArgument

_MOST_ELEMENTS: Final = 1_000_000
PARAMETER: Final = "classification"


def classes_wanted(
    output: pb.ModelInferRequest.InferRequestedOutputTensor, datatype: str, field: str
) -> int:
    """Return how many classes of an output are wanted; 0: its values are.

    Args:
        output: As requested.
        datatype: Of the output.
        field: Path of the output.

    Raises:
        InvalidArgument: No such number, or the datatype has no highest value.
    """
    given = output.parameters.get(PARAMETER)
    choice = given.WhichOneof("parameter_choice") if given else None
    if given is None or choice is None:
        return 0
    count = getattr(given, choice)
    if choice not in ("int64_param", "uint64_param") or not 0 <= count <= _MOST_ELEMENTS:
        raise InvalidArgument.at(
            f"{field}.parameters.{PARAMETER}",
            f"must be an integer from 0 to {_MOST_ELEMENTS}, got {str(count)[:40]}",
        )
    if count and datatype in ("BOOL", "BYTES"):
        raise InvalidArgument.at(
            f"{field}.parameters.{PARAMETER}",
            f"class result not available for output due to unsupported type {datatype!r}",
        )
    return int(count)


def classified(array: Array, count: int, *, batches: bool) -> Array:
    """Return "value:index" of the highest values, highest first, as BYTES.

    Args:
        array: The output.
        count: Of values; all where there are fewer.
        batches: The first dimension is items: each has its own.

    Raises:
        InvalidArgument: The output is too large.
    """
    rows = array.reshape(len(array) if batches else 1, -1)
    size = rows.shape[1]
    if size > _MOST_ELEMENTS:
        raise InvalidArgument.at(
            PARAMETER, f"classification output tensor too large: {size} values, not more than 1e6"
        )
    # Equal values keep the order of their places.
    places = size - 1 - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    how = "f" if array.dtype.kind == "f" else "d"
    texts = [
        [f"{row[place]:{how}}:{place}" for place in best]
        for row, best in zip(rows, places, strict=True)
    ]
    found = np.array(texts, object).reshape(len(rows), min(count, size))
    return found if batches else found[0]
