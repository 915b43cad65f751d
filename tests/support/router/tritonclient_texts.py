"""Run as a program: what an unmodified Triton client sees of a language model at argv[1], as JSON.

A process of its own, because tritonclient's messages and ours have the same names.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

PARAMETERS = {"max_tokens": 12, "temperature": 0.0}


def tensors(text: str) -> list[Any]:
    tensor = triton.InferInput("text_input", [1], "BYTES")
    return [tensor.set_data_from_numpy(np.array([text], dtype=object))]


def parameters(result: Any) -> dict[str, Any]:
    given = result.get_response().parameters
    return {
        key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in given.items()
    }


def main(address: str, prompt: str) -> dict[str, Any]:
    streamed: list[Any] = []
    with triton.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: streamed.append(result or str(error)))
        client.async_stream_infer("digits", tensors(prompt), parameters=PARAMETERS, request_id="s")
        client.async_stream_infer(
            "digits", tensors(prompt), parameters={"max_tokens": 0}, request_id="bad"
        )
        client.stop_stream()
        whole = client.infer("digits", tensors(prompt), parameters=PARAMETERS)
        try:
            client.infer("digits", tensors(""))
            refused = ""
        except InferenceServerException as error:
            refused = f"{error.status()}: {error.message()}"
        statistics = client.get_inference_statistics("digits", as_json=True)
        metadata = client.get_model_metadata("digits", as_json=True)
    answers = [result for result in streamed if not isinstance(result, str)]
    return {
        "texts": [result.as_numpy("text_output")[0].decode() for result in answers],
        "parameters": [parameters(result) for result in answers],
        "errors": [result for result in streamed if isinstance(result, str)],
        "whole": whole.as_numpy("text_output")[0].decode(),
        "whole_parameters": parameters(whole),
        "refused": refused,
        "statistics": statistics,
        "metadata": metadata,
    }


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
