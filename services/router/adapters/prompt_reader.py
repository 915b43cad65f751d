"""The prompt of a request to a model that generates text."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from inference import grpc_service_pb2 as pb

_NAMES = ("text_input", "prompt")
_SIZE_BYTES = 4


def prompt_of(body: bytes) -> bytes | None:
    """Return the first element of the prompt's tensor; None: there is none.

    Args:
        body: Serialized inference.ModelInferRequest.
    """
    try:
        request = pb.ModelInferRequest.FromString(body)
    except DecodeError:  # the worker reports it to the client
        return None
    for index, tensor in enumerate(request.inputs):
        if tensor.name in _NAMES and tensor.datatype == "BYTES":
            if index < len(request.raw_input_contents):
                return _first(request.raw_input_contents[index])
            given = tensor.contents.bytes_contents
            return given[0] if given else None
    return None


def _first(raw: bytes) -> bytes | None:
    """Return the first of elements that each follow their size, 4 bytes, little-endian."""
    end = _SIZE_BYTES + int.from_bytes(raw[:_SIZE_BYTES], "little")
    return raw[_SIZE_BYTES:end] if len(raw) >= max(end, _SIZE_BYTES) else None
