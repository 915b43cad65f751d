"""Sends one prompt and shows the text as it is generated."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from inference import grpc_service_pb2 as oip
from inference import grpc_service_pb2_grpc as oip_grpc
from services.cli.client import connected
from services.cli.console.output import print_json
from services.cli.infer.render import Answer, render
from services.cli.tensors import parameters_of, texts_of
from services.kit.config.loader import load
from services.kit.errors import from_status

INPUT, OUTPUT = "text_input", "text_output"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of generated text; None: as the model's deployment says."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: str | None = None


async def generate(
    config: Path, model: str, prompt: str, sampling: Sampling, *, as_json: bool
) -> None:
    """Send `prompt` to `model`; print the text as it comes, then its variant and its cost.

    Raises:
        ServiceError: The router's answer, in one sentence.
    """
    console, text = Console(), ""
    answer = Answer(model, 0.0, {}, {})
    began_s = time.perf_counter()
    async with connected(load(config)) as clients:
        async for response in responses(clients.inference, request(model, prompt, sampling)):
            said = "".join(texts_of(response, OUTPUT))
            text += said
            if not as_json:
                console.print(said, end="", markup=False, highlight=False, soft_wrap=True)
            answer = replace(answer, parameters=parameters_of(response))
    answer = replace(answer, latency_s=time.perf_counter() - began_s)
    answer.parameters.pop("triton_final_response", None)
    if as_json:
        print_json(replace(answer, outputs={OUTPUT: [text]}))
        return
    console.print("\n")
    console.print(render(answer))


def request(model: str, prompt: str, sampling: Sampling) -> oip.ModelInferRequest:
    """Return a request for text."""
    data = prompt.encode()
    message = oip.ModelInferRequest(model_name=model)
    message.inputs.add(name=INPUT, datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    kinds: dict[type, str] = {int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in asdict(sampling).items():
        if value is not None:
            setattr(message.parameters[name], kinds[type(value)], value)
    return message


async def responses(
    inference: oip_grpc.GRPCInferenceServiceAsyncStub, message: oip.ModelInferRequest
) -> AsyncIterator[oip.ModelInferResponse]:
    """Yield the parts of the answer to one request."""
    async for part in inference.ModelStreamInfer(iter([message]), timeout=None):
        if part.error_message:
            status = part.infer_response.parameters["cinquefoil_status"].string_param
            raise from_status(status or "UNKNOWN", f"router: {part.error_message} ({status})")
        yield part.infer_response
