"""A request of 100 MiB through router and worker, over gRPC and HTTP."""

import json
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from cinquefoil.planner.v1 import plan_pb2
from inference import grpc_service_pb2 as oip
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.net import free_port
from tests.support.router.router_service import World, running
from tests.support.waiting import until
from tests.support.worker import worker_in_process

ROWS = 6_600_000
"""Of two floats and an index each: a little more than 100 MiB."""

Floats = NDArray[np.float32]

LIMIT_BYTES = 101 * 2**20


@pytest.mark.may_block  # the clients, which share the loop, make 100 MiB
async def test_a_request_of_100_mib_is_answered(tmp_path: Path, model: Path) -> None:
    """Of every row, by a real worker, with no more than the request's own size allowed."""
    async with (
        worker_in_process.running(
            tmp_path, model, model="digits", costs=None, message_bytes=2**28
        ) as worker,
        running(http_listen=f"127.0.0.1:{free_port()}", max_request_bytes=LIMIT_BYTES) as world,
    ):
        await routed(world, worker.address)
        for send in (over_grpc, over_http):
            picked = await send(world)
            assert (len(picked), picked.min(), picked.max()) == (ROWS, 20.0, 20.0)


async def routed(world: World, endpoint: str) -> None:
    """Send all requests to one worker, and wait until it takes them."""
    await world.planner.route(
        plan_pb2.Instance(
            endpoint=endpoint,
            segment_id="s-1",
            variant="v",
            accuracy=0.9,
            share=1.0,
            credits=1,
            zone="US-CAL",
            pue=1.0,
        )
    )
    stub = GRPCInferenceServiceStub(world.channel)

    async def ready() -> bool:
        return (await stub.ServerReady(oip.ServerReadyRequest())).ready

    await until(ready)


async def over_grpc(world: World) -> Floats:
    """Return the output "picked"."""
    request = oip.ModelInferRequest(
        model_name="digits",
        inputs=[
            oip.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[ROWS, 2]),
            oip.ModelInferRequest.InferInputTensor(name="index", datatype="INT64", shape=[ROWS]),
        ],
        outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name="picked")],
        raw_input_contents=[bytes(8 * ROWS), np.ones(ROWS, np.int64).tobytes()],
    )
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(world.address, options=unlimited) as channel:
        answer = await GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    return np.frombuffer(answer.raw_output_contents[0], np.float32)


async def over_http(world: World) -> Floats:
    """Return the output "picked" of a request with the binary extension."""
    named = (("x", "FP32", [ROWS, 2]), ("index", "INT64", [ROWS]))
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": datatype,
                    "shape": shape,
                    "parameters": {"binary_data_size": 8 * ROWS},
                }
                for name, datatype, shape in named
            ],
            "outputs": [{"name": "picked", "parameters": {"binary_data": True}}],
        }
    ).encode()
    body = head + bytes(8 * ROWS) + np.ones(ROWS, np.int64).tobytes()
    async with httpx.AsyncClient(base_url=f"http://{world.http}", timeout=30) as client:
        answer = await client.post(
            "/v2/models/digits/infer",
            content=body,
            headers={"Inference-Header-Content-Length": str(len(head))},
        )
    assert answer.status_code == 200, answer.text[:500]
    begins = int(answer.headers["Inference-Header-Content-Length"])
    return np.frombuffer(answer.content[begins:], np.float32)
