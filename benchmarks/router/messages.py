"""The messages of the benchmark: two requests, one answer, and what makes an answer right."""

import math
import struct
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from inference import grpc_service_pb2 as pb
from services.kit.rpc.channel import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from benchmarks.router.security import Security

MODEL, VARIANT, ZONE = "constant", "variant", "zone"
INFER = "/inference.GRPCInferenceService/ModelInfer"
SHAPES = {"small": (1, 64), "image": (1, 3, 224, 224)}
"""Of FP32: requests of 284 and 602,145 bytes."""

OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a connection per channel
)
RECEIPT_KEYS = frozenset({"model_variant", "energy_j", "energy_method", "carbon_gco2e"})

_ANSWER = np.arange(10, dtype=np.float32)


def request(size: str, name: str = "") -> bytes:
    """Return a serialized request.

    Args:
        size: Of SHAPES.
        name: Id of the request.
    """
    shape = SHAPES[size]
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=shape)
    return pb.ModelInferRequest(
        model_name=MODEL,
        id=name,
        inputs=[tensor],
        raw_input_contents=[bytes(4 * math.prod(shape))],
    ).SerializeToString()


def answer(name: str = "") -> bytes:
    """Return the serialized answer to a request with this id."""
    tensor = pb.ModelInferResponse.InferOutputTensor(
        name="y", datatype="FP32", shape=[1, _ANSWER.size]
    )
    return pb.ModelInferResponse(
        model_name=MODEL,
        model_version="1",
        id=name,
        outputs=[tensor],
        raw_output_contents=[_ANSWER.tobytes()],
    ).SerializeToString()


def framed(message: bytes) -> bytes:
    """Return a message as gRPC sends it: not compressed, its length, itself."""
    return struct.pack(">BI", 0, len(message)) + message


def wrong(body: bytes, *, receipt: bool, name: str = "") -> str:
    """Return what is wrong with an answer; "" if nothing is.

    Args:
        body: Serialized answer.
        receipt: The answer must have its cost.
        name: The id of its request; "": any.
    """
    message = pb.ModelInferResponse.FromString(body)
    if name and message.id != name:
        return f"id {message.id!r} for request {name!r}"
    values = _values(message)
    if not np.array_equal(values, _ANSWER):
        return f"y is {values.tolist()}"
    missing = RECEIPT_KEYS - set(message.parameters) if receipt else ()
    return f"no {', '.join(sorted(missing))}" if missing else ""


def _values(message: pb.ModelInferResponse) -> np.ndarray[Any, np.dtype[np.float32]]:
    if message.raw_output_contents:
        return np.frombuffer(message.raw_output_contents[0], np.float32)
    typed = [each.contents.fp32_contents for each in message.outputs[:1]]
    return np.array(typed, np.float32).reshape(-1)


def channel(port: int, security: "Security | None" = None) -> grpc.aio.Channel:
    """Return a channel to a port of this machine, with TLS and a token if there is security."""
    address = f"127.0.0.1:{port}"
    if security is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    return grpc.aio.secure_channel(address, security.credentials(), options=OPTIONS)


def infer(to: grpc.aio.Channel) -> Any:
    """Return ModelInfer on a channel, from bytes to bytes."""
    return to.unary_unary(INFER)
