"""Run as a program: what unmodified Triton clients see of a decoupled model at argv[1], as JSON.

The model counts: x = [n, marked] has the answers 1 to n. A process of its own, because
tritonclient's messages and ours have the same names.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from tritonclient.utils import InferenceServerException


def tensors(n: int, *, marked: bool) -> list[Any]:
    tensor = sync_client.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[n, marked]], np.float32))
    return [tensor]


def seen(result: Any) -> list[Any]:
    response = result.get_response()
    final = response.parameters["triton_final_response"].bool_param
    value = result.as_numpy("y").tolist() if response.outputs else []
    return [response.id, value, final, "energy_j" in response.parameters]


def with_sync(address: str) -> dict[str, Any]:
    found: list[list[Any]] = []
    with sync_client.InferenceServerClient(address) as client:
        config = client.get_model_config("digits", as_json=True)["config"]
        client.start_stream(lambda result, error: found.append(seen(result) if result else error))
        client.async_stream_infer(
            "digits", tensors(3, marked=False), request_id="x", enable_empty_final_response=True
        )
        client.async_stream_infer("digits", tensors(2, marked=True), request_id="y")
        client.stop_stream()
        one = client.infer("digits", tensors(1, marked=False)).as_numpy("y").tolist()
        try:
            client.infer("digits", tensors(2, marked=True))
        except InferenceServerException as error:
            refused = [str(error.status()), str(error.message())]
    policy = config["model_transaction_policy"]
    return {"policy": policy, "streamed": found, "one": one, "refused": refused}


async def with_aio(address: str) -> dict[str, Any]:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for name in ("x", "y"):
            yield {
                "model_name": "digits",
                "inputs": tensors(3, marked=True),
                "request_id": name,
            }

    async with aio_client.InferenceServerClient(address) as client:
        return {"streamed": [seen(result) async for result, _ in client.stream_infer(requests())]}


if __name__ == "__main__":
    json.dump(
        {"sync": with_sync(sys.argv[1]), "aio": asyncio.run(with_aio(sys.argv[1]))}, sys.stdout
    )
