"""Requests of a load: items of a file, texts, or the demo's held-out digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from inference import grpc_service_pb2 as oip
from services.cli.infer import generate
from services.cli.infer.send import read, signature
from services.cli.samples import some_items
from services.cli.tensors import outputs_of, request_of
from services.kit.errors import InvalidArgument
from services.local.demo.demo_models import MODEL as DEMO

_MOST: Final = 1024
"""Requests made ahead; a load takes them by turns."""

_TEXTS: Final = ("Why is the sky blue?", "Name three rivers.", "Write a sentence about rain.")


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests ready to send, and the right answers.

    Attributes:
        messages: At least one; a load takes them by turns.
        labels: The right class of each; None: not known.
    """

    messages: Sequence[oip.ModelInferRequest]
    labels: Sequence[int] | None = None

    def right(self, number: int, response: oip.ModelInferResponse) -> bool | None:
        """Return whether a response to message `number` is right; None: that is not known."""
        if self.labels is None:
            return None
        found = _class_of(response)
        return None if found is None else found == self.labels[number]


def requests_for(described: oip.ModelMetadataResponse, source: Path | None) -> Requests:
    """Return the requests to a model.

    Args:
        described: The model's metadata.
        source: An .npz file with an array for each input, items first, and `labels` where they are
            known; a .npy array, items first; a text file, a prompt a line. None: digits for the
            demo's models, short prompts for language models.

    Raises:
        InvalidArgument: The file does not fit the model's inputs, or none is given and needed.
    """
    inputs = [each.name for each in described.inputs]
    if generate.INPUT in inputs:
        return Requests([_text(described.name, each) for each in _texts(source)])
    if source is not None and source.suffix == ".npz":
        samples = some_items(source, inputs, 0, _MOST).samples()
        arrays, labels = samples.inputs, samples.labels
    elif source is not None:
        _alone(described)
        arrays, labels = {inputs[0]: read(source)[:_MOST]}, None
    else:
        arrays, labels = _digits(described)
    count = min(map(len, arrays.values()))
    messages = [oip.ModelInferRequest(model_name=described.name) for _ in range(count)]
    for tensor in described.inputs:
        for number, message in enumerate(messages):
            item = arrays[tensor.name][number : number + 1]
            one = request_of(described.name, tensor.name, tensor.datatype, item)
            message.inputs.extend(one.inputs)
            message.raw_input_contents.extend(one.raw_input_contents)
    known = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
    return Requests(messages, labels.tolist() if labels is not None and known else None)


def _digits(described: oip.ModelMetadataResponse) -> tuple[dict[str, Any], Any]:
    shapes = [(each.name, list(each.shape)) for each in described.inputs]
    if shapes != [("image", [-1, 64])]:
        raise InvalidArgument(
            f"--input: give an .npz file; {described.name} takes {signature(described)}. "
            f"Only the demo's models ({DEMO}, ...) are sent digits without it"
        )
    from services.local.demo.digits import held_out  # noqa: PLC0415 - scikit-learn, for digits only

    images, labels = held_out()
    return {"image": images}, labels


def _alone(described: oip.ModelMetadataResponse) -> None:
    if len(described.inputs) != 1:
        raise InvalidArgument(
            f"--input: {described.name} takes {signature(described)}: give an .npz file with an "
            "array for each"
        )


def _texts(source: Path | None) -> Sequence[str]:
    if source is None:
        return _TEXTS
    lines = source.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if line.strip()][:_MOST]
    if not texts:
        raise InvalidArgument(f"--input: {source} has no line of text")
    return texts


def _text(model: str, prompt: str) -> oip.ModelInferRequest:
    return generate.request(model, prompt, generate.Sampling())


def _class_of(response: oip.ModelInferResponse) -> int | None:
    """Return the answer's class: its output of one integer, or the largest score."""
    outputs = list(outputs_of(response).values())
    for values in outputs:
        if values.dtype.kind in "iu" and values.size == 1:
            return int(values.flat[0])
    for values in outputs:
        if values.dtype.kind == "f" and values.ndim == 2 and values.shape[1] > 1:
            return int(np.argmax(values[0]))
    return None
