"""Types and shapes of a model's tensors from one run, where shape inference may fail."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from services.kit.errors import InvalidArgument
from services.kit.operators import random_inputs
from services.kit.operators.core.work import Operand
from services.kit.operators.random_inputs import Sizes


class Tracer:
    """A model with all its tensors as outputs. Blocks; needs the memory of all of them at once.

    Args:
        model: The model; not changed.
        example: An item for inputs by name, which is run instead of random values.

    Raises:
        InvalidArgument: ONNX Runtime refuses the model.
    """

    def __init__(
        self, model: onnx.ModelProto, example: Mapping[str, random_inputs.Array] | None = None
    ) -> None:
        self._example = example or {}
        traced = onnx.ModelProto()
        traced.CopyFrom(model)
        del traced.graph.output[:]
        self._names = [name for node in model.graph.node for name in node.output if name]
        traced.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._names)
        self._session = session(traced.SerializeToString(), optimised=False)
        inputs = self._session.get_inputs()
        self.batches, self.free = random_inputs.batches(inputs), random_inputs.free(inputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        return tuple(each.name for each in self._session.get_inputs())

    def trace(self, sizes: Sizes) -> Mapping[str, Operand | None]:
        """Run the model once; return its tensors by name, None for other values.

        Raises:
            InvalidArgument: The model does not run at these sizes.
        """
        values = self.values(sizes, self._names)
        return {name: seen(value) for name, value in values.items()}

    def values(self, sizes: Sizes, names: Iterable[str]) -> Mapping[str, Any]:
        """Run the model once; return its inputs and the named tensors.

        Raises:
            InvalidArgument: The model does not run at these sizes.
        """
        given = random_inputs.drawn(
            self._session.get_inputs(), sizes, seed=0, example=self._example
        )
        wanted = [name for name in names if name not in given]
        try:
            outputs = self._session.run(wanted, dict(given))
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise InvalidArgument(
                f"it does not run with {sizes.batch} items and {sizes.other} for other free sizes: "
                f"{error}"
            ) from error
        return {**given, **dict(zip(wanted, outputs, strict=True))}


def session(
    model: bytes,
    *,
    optimised: bool = True,
    provider: str = "CPUExecutionProvider",
    threads: int = 1,
) -> Any:
    """Return a session, on one thread unless more are wanted.

    Raises:
        InvalidArgument: ONNX Runtime refuses the model.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised too
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = list(dict.fromkeys((provider, "CPUExecutionProvider")))
    try:
        return ort.InferenceSession(model, options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors share no base class
        raise InvalidArgument(f"ONNX Runtime does not take it: {error}") from error


def seen(value: object) -> Operand | None:
    """Return an array's type and shape; None: it is not an array of numbers."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        return None
    return Operand(value.dtype.name, value.shape, value.itemsize)
