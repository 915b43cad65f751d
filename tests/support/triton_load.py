"""Poisson load from an unmodified Triton client; prints what became of every request as JSON.

Runs in a process of its own: tritonclient's protobuf descriptors and ours exclude one another.

    python triton_load.py ADDRESS IMAGES.npy SECONDS RATE [--pki=FOLDER] [--fresh] [--retry]
        [--labels]

With --pki it uses mutual TLS with the certificate of that folder; with --fresh each request has a
connection of its own. With --labels it requests that output alone, and prints each answer:
number of the image, label.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

RETRY_FOR_S = 20.0


@dataclass
class Report:
    """Counts of requests sent and of answers."""

    sent: int = 0
    answered: int = 0
    retries: int = 0
    errors: list[str] = field(default_factory=list)
    variants: dict[str, int] = field(default_factory=dict)
    energy_j: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    labels: list[tuple[int, int]] = field(default_factory=list)


class Fresh:
    """A client whose every request has a connection of its own."""

    def __init__(self, address: str, **arguments: str | bool) -> None:
        self._make: Any = lambda: triton.InferenceServerClient(address, **arguments)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        return

    async def infer(self, *given: object, **named: object) -> triton.InferResult:
        """Send one request."""
        async with self._make() as client:
            return await client.infer(*given, **named)


async def infer(
    client: triton.InferenceServerClient | Fresh, image: np.ndarray, outputs: list[str] | None
) -> triton.InferResult:
    """Send one image."""
    tensor = triton.InferInput("image", [1, 64], "FP32")
    tensor.set_data_from_numpy(image[None, :])
    wanted = [triton.InferRequestedOutput(name) for name in outputs] if outputs else None
    return await client.infer("digits", [tensor], outputs=wanted, client_timeout=30)


async def one(
    client: triton.InferenceServerClient | Fresh,
    pictures: np.ndarray,
    number: int,
    report: Report,
    flags: tuple[str, ...],
) -> None:
    """Send one image until it is answered, or once where "--retry" is not among the flags."""
    outputs = ["label"] if "--labels" in flags else None
    started_s = time.monotonic()
    while True:
        try:
            result = await infer(client, pictures[number], outputs)
        except InferenceServerException as error:
            may_retry = "--retry" in flags and "UNAVAILABLE" in str(error.status())
            if not may_retry or time.monotonic() - started_s > RETRY_FOR_S:
                report.errors.append(f"{error.status()}: {error.message()}")
                return
            report.retries += 1
            await asyncio.sleep(0.1)
        else:
            break
    if outputs:
        report.labels.append((number, int(result.as_numpy("label")[0])))
    parameters = result.get_response().parameters
    report.answered += int(result.as_numpy("label").shape == (1,))
    variant = parameters["model_variant"].string_param
    report.variants[variant] = report.variants.get(variant, 0) + 1
    report.energy_j += parameters["energy_j"].double_param
    report.latencies_s.append(time.monotonic() - started_s)


def secured(flags: tuple[str, ...]) -> dict[str, str | bool]:
    """Return the client's arguments for mutual TLS, where --pki is among the flags."""
    folders = [flag.removeprefix("--pki=") for flag in flags if flag.startswith("--pki=")]
    if not folders:
        return {}
    return {
        "ssl": True,
        "root_certificates": f"{folders[0]}/ca.crt",
        "private_key": f"{folders[0]}/tls.key",
        "certificate_chain": f"{folders[0]}/tls.crt",
    }


async def main(address: str, images: str, seconds: str, rate: str, *flags: str) -> None:
    """Send for `seconds` at `rate` requests per second, then wait for every answer."""
    pictures = np.load(images)
    rng, report = random.Random(1), Report()
    kind = Fresh if "--fresh" in flags else triton.InferenceServerClient
    async with (
        kind(address, **secured(flags)) as client,
        asyncio.TaskGroup() as tasks,
    ):
        began_s = time.monotonic()
        while time.monotonic() < began_s + float(seconds):
            report.sent += 1
            report.sent_s.append(time.monotonic() - began_s)
            number = report.sent % len(pictures)
            tasks.create_task(one(client, pictures, number, report, flags))
            await asyncio.sleep(rng.expovariate(float(rate)))
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
