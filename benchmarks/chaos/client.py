"""A foreign client: Poisson load by tritonclient, which writes down what became of every request.

    python client.py ADDRESS IMAGES.npy SECONDS RATE RECONNECT_MS

A process of its own: tritonclient's protobuf descriptors and ours exclude one another. It prints
one JSON array per request: its id, when it was sent and when it ended (CLOCK_MONOTONIC, s), how
often it was sent again, the number of its image, the label of the answer (-1: none), the variant
that answered, and what went wrong ("": nothing).
"""

import asyncio
import json
import random
import sys
import time
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

TIMEOUT_S = 10.0
AGAIN_S = 0.1
"""A router that is not there lost nothing that it had not answered: clients send it again."""


async def one(client: Any, number: int, images: Any) -> list[Any]:
    """Send one request until it is answered, refused, or out of time; return its line."""
    image = number % len(images)
    tensor = triton.InferInput("image", [1, images.shape[1]], "FP32")
    tensor.set_data_from_numpy(images[image][None, :])
    sent_s = time.monotonic()
    again, label, variant, problem = 0, -1, "", ""
    while True:
        left_s = sent_s + TIMEOUT_S - time.monotonic()
        try:
            answer = await client.infer(
                "digits", [tensor], request_id=str(number), client_timeout=max(left_s, 0.001)
            )
        except InferenceServerException as error:
            problem = f"{error.status()}: {error.message()}"
            if "UNAVAILABLE" in str(error.status()) and left_s > AGAIN_S:
                again += 1
                await asyncio.sleep(AGAIN_S)
                continue
        else:
            message = answer.get_response()
            label = int(answer.as_numpy("label")[0])
            variant = message.parameters["model_variant"].string_param
            problem = "" if message.id == str(number) else f"answer of request {message.id}"
        return [number, sent_s, time.monotonic(), again, image, label, variant, problem]


async def main(address: str, file: str, seconds: str, rate: str, reconnect_ms: str) -> None:
    """Send for `seconds` at `rate` requests per second, then wait for every end.

    `reconnect_ms` bounds the delays before gRPC connects again; 0: they are gRPC's, 1 s to 120 s.
    """
    images = np.load(file)
    rng, number = random.Random(1), 0  # load, no secret
    bounds = (
        "initial_reconnect_backoff_ms",
        "min_reconnect_backoff_ms",
        "max_reconnect_backoff_ms",
    )
    options = [(f"grpc.{name}", int(reconnect_ms)) for name in bounds if int(reconnect_ms)]
    async with triton.InferenceServerClient(address, channel_args=options) as client:
        ends_s, tasks = time.monotonic() + float(seconds), []
        while time.monotonic() < ends_s:
            tasks.append(asyncio.create_task(one(client, number, images)))
            number += 1
            await asyncio.sleep(rng.expovariate(float(rate)))
        for line in await asyncio.gather(*tasks):
            print(json.dumps(line))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
