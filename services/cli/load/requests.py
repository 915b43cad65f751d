"""Requests of a load: items of a file, texts, or the demo's held-out digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from inference import grpc_service_pb2 as oip
from services.cli.infer import generate
from services.cli.infer.send import inputs_of, message_of, signature
from services.cli.samples import some_items
from services.cli.tensors import outputs_of
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
    if source is not None:
        items = some_items(source, inputs_of(described), 0, _MOST)
        requests, labels = items.tensors(), items.classes()
    else:
        images, found = _digits(described)
        requests = [{"image": images[n : n + 1]} for n in range(min(len(images), _MOST))]
        labels = found.tolist()
    return Requests([message_of(described, each) for each in requests], labels)


def _digits(described: oip.ModelMetadataResponse) -> tuple[Any, Any]:
    shapes = [(each.name, list(each.shape)) for each in described.inputs]
    if shapes != [("image", [-1, 64])]:
        raise InvalidArgument(
            f"--input: give an .npz file; {described.name} takes {signature(described)}. "
            f"Only the demo's models ({DEMO}, ...) are sent digits without it"
        )
    from services.local.demo.digits import held_out  # noqa: PLC0415 - scikit-learn, for digits only

    images, labels = held_out()
    return images, labels


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
