"""Run as a program: what an unmodified Triton HTTP client sees of the server at argv[1], as JSON.

A process of its own: its gevent replaces parts of Python's standard library.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

ROW = np.array([[1, 2, 3, 4]], dtype=np.float32)


def tensors(values: np.ndarray[Any, Any], datatype: str = "FP32", *, binary: bool) -> list[Any]:
    tensor = triton.InferInput("x", list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return [tensor]


def refused(call: Any) -> list[str]:
    try:
        call()
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return ["200", ""]


def answered(client: Any, *, binary_in: bool, binary_out: bool, **options: Any) -> dict[str, Any]:
    """Return the outputs of an inference, its tensors in JSON or in binary."""
    wanted = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    result = client.infer(
        "digits", tensors(ROW, binary=binary_in), outputs=wanted, request_id="mine", **options
    )
    return {"output": result.as_numpy("y").tolist(), "response": result.get_response()}


def look(address: str) -> dict[str, Any]:
    client = triton.InferenceServerClient(address)
    oversized = np.zeros((1000, 4), dtype=np.float32)
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model ready": client.is_model_ready("digits", "1"),
        "server": client.get_server_metadata(),
        "metadata": client.get_model_metadata("digits"),
        "config": client.get_model_config("digits"),
        "index": client.get_model_repository_index(),
        "log": client.get_log_settings(),
        "regions": client.get_system_shared_memory_status(),
        "json": answered(client, binary_in=False, binary_out=False),
        "binary": answered(client, binary_in=True, binary_out=True, timeout=5_000_000, priority=1),
        "mixed": answered(client, binary_in=True, binary_out=False),
        "compressed": answered(
            client, binary_in=True, binary_out=True, request_compression_algorithm="gzip"
        ),
        "statistics": client.get_inference_statistics("digits"),
        "wrong": {
            "unknown model": refused(lambda: client.infer("nothing", tensors(ROW, binary=True))),
            "wrong shape": refused(
                lambda: client.infer("digits", tensors(ROW[:, :3], binary=True))
            ),
            "oversized": refused(lambda: client.infer("digits", tensors(oversized, binary=True))),
            "load": refused(lambda: client.load_model("digits")),
            "log": refused(lambda: client.update_log_settings({"log_verbose_level": 1})),
            "memory": refused(lambda: client.register_system_shared_memory("r", "/r", 64)),
        },
    }


if __name__ == "__main__":
    json.dump(look(sys.argv[1]), sys.stdout)
