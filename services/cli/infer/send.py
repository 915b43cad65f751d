"""Sends one request and shows the answer."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from inference import grpc_service_pb2 as oip
from services.cli.client import Clients, connected
from services.cli.infer.render import Answer, drawing, render
from services.cli.tensors import outputs_of, parameters_of, request_of
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument


async def send(config: Path, model: str, *, image: int, source: Path | None, as_json: bool) -> None:
    """Send a held-out digit, or the array in a .npy file, to `model` and print the answer.

    Raises:
        InvalidArgument: The file is no array of numbers, or the model takes more than one input.
        ServiceError: The router's answer, in one sentence.
    """
    deployment = load(config)
    array, truth = (read(source), None) if source else _digit(image)
    async with connected(deployment) as clients:
        answer = await request(clients, deployment.router.default_timeout_s, model, array, truth)
    console = Console()
    if as_json:
        console.print_json(json.dumps(asdict(answer)))
        return
    if source is None:
        console.print(drawing(array[0]))
    console.print(render(answer))


async def request(
    clients: Clients, timeout_s: float, model: str, array: NDArray[Any], truth: int | None
) -> Answer:
    """Look up the model's input, then send it `array`."""
    described = await clients.inference.ModelMetadata(oip.ModelMetadataRequest(name=model))
    if len(described.inputs) != 1:
        names = ", ".join(tensor.name for tensor in described.inputs)
        raise InvalidArgument(f"{model} takes the inputs {names}; this command sends one tensor")
    tensor = described.inputs[0]
    message = request_of(model, tensor.name, tensor.datatype, array)
    began_s = time.perf_counter()
    response = await clients.inference.ModelInfer(message, timeout=timeout_s)
    return Answer(
        model=model,
        latency_s=time.perf_counter() - began_s,
        outputs={name: values.tolist() for name, values in outputs_of(response).items()},
        parameters=parameters_of(response),
        truth=truth,
    )


def read(source: Path) -> NDArray[Any]:
    """Return the array in a .npy file; a single item gets a batch dimension.

    Raises:
        InvalidArgument: The file holds no array of numbers.
        OSError: It cannot be read.
    """
    try:
        with source.open("rb") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        raise InvalidArgument(f"{source} is not a .npy array of numbers") from error
    if array.dtype.kind not in "biuf":
        raise InvalidArgument(f"{source} has {array.dtype} in it; numbers can be sent")
    return array[None] if array.ndim == 1 else array


def _digit(index: int) -> tuple[NDArray[Any], int]:
    from services.local.demo.digits import held_out  # noqa: PLC0415 - scikit-learn, for digits only

    images, labels = held_out()
    return images[index : index + 1], int(labels[index])
