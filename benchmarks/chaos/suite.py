"""The suite that faults meet: digits on simulated GPUs, and the right answers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
from numpy.typing import NDArray

from inference import grpc_service_pb2 as pb
from services.kit.net import free_port
from services.local.demo.digits import held_out

VARIANTS = {"linear": (0.97, 1.0), "mlp-64": (0.975, 2.0)}
"""Accuracy, and how heavy it is, GMAC: light, so that the GPUs are not what the run waits for."""


class Digits:
    """Images, and what each variant makes of them."""

    def __init__(self, models: Path) -> None:
        self._images, _ = held_out()
        self._labels = labels(models)

    def request(self, number: int) -> pb.ModelInferRequest:
        """Return a request for one image, with its number as its id."""
        tensor = pb.ModelInferRequest.InferInputTensor(
            name="image", datatype="FP32", shape=[1, self._images.shape[1]]
        )
        image = self._images[number % len(self._images)]
        return pb.ModelInferRequest(
            model_name="digits",
            id=str(number),
            inputs=[tensor],
            raw_input_contents=[image.tobytes()],
        )

    def judge(self, answer: pb.ModelInferResponse) -> str:
        """Return whether an answer belongs to its own request."""
        labels = self._labels[answer.parameters["model_variant"].string_param]
        names = [output.name for output in answer.outputs]
        raw = answer.raw_output_contents[names.index("label")]
        right = np.frombuffer(raw, np.int64)[0] == labels[int(answer.id) % len(labels)]
        return "answered" if right else "wrong"


def labels(models: Path) -> dict[str, NDArray[np.int64]]:
    """Return the label that each variant gives to each image, by variant."""
    images, _ = held_out()

    def of(name: str) -> NDArray[np.int64]:
        session = onnxruntime.InferenceSession(models / f"{name}.onnx")
        found: NDArray[np.int64] = session.run(["label"], {"image": images})[0]
        return found

    return {name: of(name) for name in VARIANTS}


def deployment(folder: Path, router: str) -> dict[str, Any]:
    """Return a suite of one node whose workers come back quickly."""

    def listen() -> dict[str, str]:
        return {"listen": f"127.0.0.1:{free_port()}"}

    return {
        "version": "v1",
        "log_level": "warning",
        "carbon": {**listen(), "zones": {"US-CAL": {"source": {"kind": "synthetic"}}}},
        "planner": {**listen(), "database": str(folder / "planner.sqlite3")},
        "nodes": {
            "node-0": {
                **listen(),
                "zone": "US-CAL",
                "simulated": ["a100-40gb"],
                "state_dir": str(folder / "state"),
            }
        },
        "models": {
            "digits": {
                "slo": {"percentile": 95, "latency_s": 0.4},
                "demand_rps": 300,
                "variants": {
                    name: {
                        "file": str(folder / "models" / f"{name}.onnx"),
                        "accuracy": accuracy,
                        "profile": {"kind": "analytic", "gmacs_per_item": gmacs},
                    }
                    for name, (accuracy, gmacs) in VARIANTS.items()
                },
            }
        },
        "router": {"listen": router},
    }


def workers(folder: Path) -> list[psutil.Process]:
    """Return the worker processes of this suite only."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "services.gpuagent.worker" in (command := process.info["cmdline"] or [])
        and any(str(folder) in word for word in command)
    ]
