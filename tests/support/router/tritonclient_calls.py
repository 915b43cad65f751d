"""Run as a program: what unmodified Triton clients see of the server at argv[1], as JSON.

A process of its own, because tritonclient's messages and ours have the same names.
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

ROW = np.array([[1, 2, 3, 4]], dtype=np.float32)


def tensors(values: np.ndarray[Any, Any], datatype: str = "FP32") -> list[Any]:
    tensor = sync_client.InferInput("x", list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return [tensor]


WRONG: dict[str, tuple[str, list[Any]]] = {
    "unknown model": ("nothing", tensors(ROW)),
    "wrong shape": ("digits", tensors(ROW[:, :3])),
    "wrong dtype": ("digits", tensors(ROW.astype(np.int32), "INT32")),
    "oversized": ("digits", tensors(np.zeros((1000, 4), dtype=np.float32))),
}


def status_and_message(error: InferenceServerException) -> list[str]:
    return [str(error.status()), str(error.message())]


def outcome(client: Any, model: str, inputs: list[Any]) -> list[str]:
    try:
        client.infer(model, inputs)
    except InferenceServerException as error:
        return status_and_message(error)
    return ["OK", ""]


def refusals(client: Any) -> dict[str, list[str]]:
    """Return the answers to calls that a planner or a network forbids."""
    calls: dict[str, Any] = {
        "load": lambda: client.load_model("digits"),
        "load unknown": lambda: client.load_model("nothing"),
        "unload": lambda: client.unload_model("digits"),
        "system memory": lambda: client.register_system_shared_memory("r", "/r", 64),
        "cuda memory": lambda: client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 64),
        "log": lambda: client.update_log_settings({"log_verbose_level": 1}),
        "trace": lambda: client.update_trace_settings(settings={"trace_rate": "1"}),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except InferenceServerException as error:
            found[name] = status_and_message(error)
    return found


def streamed(client: Any) -> list[list[Any]]:
    """The answers to four requests of one stream, one of them wrong: output and id, or error."""
    found: list[list[Any]] = []

    def take(result: Any, error: InferenceServerException | None) -> None:
        done = result is not None
        found.append([*_seen(result)] if done else ["error", str(error.message() if error else "")])

    client.start_stream(take)
    for name in ("a", "b"):
        client.async_stream_infer("digits", tensors(ROW), request_id=name)
    client.async_stream_infer("nothing", tensors(ROW), request_id="c")
    client.async_stream_infer("digits", tensors(ROW), request_id="d", priority=1, timeout=5_000_000)
    client.stop_stream()
    return found


def _seen(result: Any) -> tuple[Any, ...]:
    response = result.get_response()
    return result.as_numpy("y").tolist(), response.id


def with_sync(address: str) -> dict[str, Any]:
    with sync_client.InferenceServerClient(address) as client:
        answer = client.infer("digits", tensors(ROW), request_id="mine", timeout=5_000_000)
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready() and client.is_model_ready("digits"),
            "server": client.get_server_metadata(as_json=True),
            "metadata": client.get_model_metadata("digits", as_json=True),
            "config": client.get_model_config("digits", as_json=True)["config"],
            "output": answer.as_numpy("y").tolist(),
            "response": answer.get_response(as_json=True),
            "statistics": client.get_inference_statistics("digits", as_json=True),
            "index": client.get_model_repository_index(as_json=True),
            "regions": [
                client.get_system_shared_memory_status(as_json=True),
                client.get_cuda_shared_memory_status(as_json=True),
            ],
            "log": client.get_log_settings(as_json=True),
            "trace": client.get_trace_settings(as_json=True),
            "refusals": refusals(client),
            "compressed": [
                client.infer("digits", tensors(ROW), compression_algorithm=name)
                .as_numpy("y")
                .tolist()
                for name in ("gzip", "deflate")
            ],
            "streamed": streamed(client),
            "wrong": {
                name: outcome(client, model, inputs) for name, (model, inputs) in WRONG.items()
            },
        }


async def streamed_aio(client: Any) -> list[list[Any]]:
    """As `streamed`, by the asyncio client."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for model, name in (("digits", "a"), ("digits", "b"), ("nothing", "c"), ("digits", "d")):
            yield {"model_name": model, "inputs": tensors(ROW), "request_id": name}

    return [
        [*_seen(result)] if result is not None else ["error", error.message()]
        async for result, error in client.stream_infer(requests())
    ]


async def with_aio(address: str) -> dict[str, Any]:
    async with aio_client.InferenceServerClient(address) as client:
        answers = await asyncio.gather(
            *(client.infer("digits", tensors(ROW), request_id=str(i)) for i in range(8))
        )
        wrong = {}
        for name, (model, inputs) in WRONG.items():
            try:
                await client.infer(model, inputs)
            except InferenceServerException as error:
                wrong[name] = status_and_message(error)
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready() and await client.is_model_ready("digits"),
            "metadata": await client.get_model_metadata("digits", as_json=True),
            "config": (await client.get_model_config("digits", as_json=True))["config"],
            "outputs": [answer.as_numpy("y").tolist() for answer in answers],
            "ids": [answer.get_response().id for answer in answers],
            "statistics": await client.get_inference_statistics(as_json=True),
            "streamed": await streamed_aio(client),
            "wrong": wrong,
        }


if __name__ == "__main__":
    seen = {"sync": with_sync(sys.argv[1]), "aio": asyncio.run(with_aio(sys.argv[1]))}
    json.dump(seen, sys.stdout)
