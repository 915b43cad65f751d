"""Sends one request and shows the answer."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from inference import grpc_service_pb2 as oip
from services.cli.client import Clients, connected
from services.cli.console.output import print_json
from services.cli.infer.render import Answer, drawing, render
from services.cli.samples import Input, read_array, some_items
from services.cli.tensors import outputs_of, parameters_of, request_of
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument
from services.kit.plurals import counted
from services.local.demo.demo_models import MODEL as DEMO


async def send(
    config: Path, model: str, *, digit: int | None, source: tuple[Path, int] | None, as_json: bool
) -> None:
    """Send a held-out digit, an array, or an item of a validation set, and print the answer.

    Args:
        config: Deployment file.
        model: A model of it.
        digit: Number of the digit; None: the first, where the model is the demo's.
        source: .npy file with one array, or .npz file with one for each input and which item of it;
            None: a digit.
        as_json: Print JSON.

    Raises:
        InvalidArgument: The file does not fit the model's inputs, or none is given and needed.
        ServiceError: The router's answer, in one sentence.
    """
    deployment = load(config)
    async with connected(deployment) as clients:
        described = await clients.inference.ModelMetadata(oip.ModelMetadataRequest(name=model))
        arrays: NDArray[Any] | Mapping[str, NDArray[Any]]
        truth: int | None = None
        if source is None:
            if digit is None and model != DEMO:
                raise InvalidArgument(
                    f"--input: give a .npy or .npz file; {model} takes {signature(described)}"
                )
            arrays, truth = _digit(digit or 0)
        elif source[0].suffix == ".npz":
            arrays, truth = _item(*source, inputs_of(described))
        else:
            arrays = _batch(source[0], described)
        answer = await request(
            clients, deployment.router.default_timeout_s, described, arrays, truth
        )
    console = Console()
    if as_json:
        print_json(answer)
        return
    if source is None and isinstance(arrays, np.ndarray):
        console.print(drawing(arrays[0]))
    console.print(render(answer))


async def request(
    clients: Clients,
    timeout_s: float,
    described: oip.ModelMetadataResponse,
    arrays: NDArray[Any] | Mapping[str, NDArray[Any]],
    truth: int | None,
) -> Answer:
    """Send arrays to a model that was looked up: one, or one for each input by name."""
    model = described.name
    if not isinstance(arrays, Mapping):
        if len(described.inputs) != 1:
            raise InvalidArgument(
                f"{model} takes {signature(described)}: send an .npz file with an array for each"
            )
        arrays = {described.inputs[0].name: arrays}
    message = message_of(described, arrays)
    began_s = time.perf_counter()
    response = await clients.inference.ModelInfer(message, timeout=timeout_s)
    return Answer(
        model=model,
        latency_s=time.perf_counter() - began_s,
        outputs={name: values.tolist() for name, values in outputs_of(response).items()},
        parameters=parameters_of(response),
        truth=truth,
    )


def message_of(
    described: oip.ModelMetadataResponse, arrays: Mapping[str, NDArray[Any]]
) -> oip.ModelInferRequest:
    """Return a request with an array for each input of a model that was looked up.

    Raises:
        InvalidArgument: An array cannot be sent as its input's datatype.
    """
    message = oip.ModelInferRequest(model_name=described.name)
    for tensor in described.inputs:
        one = request_of(described.name, tensor.name, tensor.datatype, arrays[tensor.name])
        message.inputs.extend(one.inputs)
        message.raw_input_contents.extend(one.raw_input_contents)
    return message


def signature(described: oip.ModelMetadataResponse) -> str:
    """Return a model's inputs with datatypes and shapes, in words."""
    return ", ".join(f"{t.name} {t.datatype}{list(t.shape)}" for t in described.inputs)


def inputs_of(described: oip.ModelMetadataResponse) -> list[Input]:
    """Return the inputs of a model that was looked up."""
    return [Input.of(each.name, each.shape) for each in described.inputs]


def _item(
    source: Path, item: int, inputs: Sequence[Input]
) -> tuple[Mapping[str, NDArray[Any]], int | None]:
    """Return an item of a validation set, and its label where it is a number."""
    found = some_items(source, inputs, item, 1)
    if item >= found.count:
        raise InvalidArgument(
            f"--item: {source} has {counted(found.count, 'item')}, from 0; got {item}"
        )
    classes = found.classes()
    return found.tensors()[0], classes[0] if classes else None


def _batch(source: Path, described: oip.ModelMetadataResponse) -> NDArray[Any]:
    """Return the array in a .npy file; a single item gets a batch dimension."""
    array = read_array(source)
    lacks_batch = any(len(each.shape) == array.ndim + 1 for each in described.inputs)
    return array[None] if lacks_batch else array


def _digit(index: int) -> tuple[NDArray[Any], int]:
    from services.local.demo.digits import held_out  # noqa: PLC0415 - scikit-learn, for digits only

    images, labels = held_out()
    return images[index : index + 1], int(labels[index])
