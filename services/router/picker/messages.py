"""Messages to Envoy and from it: what the endpoint picker protocol makes of ext_proc's.

Sources: Gateway API Inference Extension, "Endpoint Picker Protocol"; Envoy, `ext_proc`.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from pydantic_core import to_json

from envoy_ext_proc import ext_proc_pb2 as pb
from services.kit.errors import ServiceError
from services.kit.http.statuses import STATUSES, TOO_LARGE
from services.kit.protobuf_wire import varint
from services.kit.rpc.client_identity import CLIENT_ID
from services.router.edge.openai_messages import error_form

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header, and key of the metadata, that names the servers to try, in order."""

FAIRNESS: Final = "x-gateway-inference-fairness-id"
"""Header that names the client for turns and quotas."""

_NAMESPACE: Final = "envoy.lb"
_SUBSET: Final = ("envoy.lb.subset_hint", f"{DESTINATION}-subset")
_SERVED: Final = f"{DESTINATION}-served"
_FILTER: Final = "envoy.filters.http.ext_proc"
_UPSTREAM: Final = "upstream.address"
_TAGS: Final = {"request_body": b"\x1a", "response_body": b"\x22"}
_READ: Final = frozenset(
    (":path", ":status", "content-type", "content-encoding", CLIENT_ID, FAIRNESS)
)
_PIECE_BYTES: Final = 62_000
"""Of a body at a time: Envoy takes 64 KiB."""


def _response(kind: str) -> pb.ProcessingResponse:
    """Return the answer to a kind of message, without any change."""
    found = pb.ProcessingResponse()
    getattr(found, kind).SetInParent()  # an answer without a kind fails the request
    return found


CONTINUE: Final[Mapping[str, bytes]] = {
    kind: _response(kind).SerializeToString()
    for kind in (
        "request_headers",
        "request_body",
        "request_trailers",
        "response_headers",
        "response_body",
        "response_trailers",
    )
}
"""Answers that change nothing, by what they answer."""


@lru_cache(4096)
def destination(servers: str, kind: str) -> bytes:
    """Return the answer that names servers, in header and metadata.

    A header of this name that the client sent is replaced.

    Args:
        servers: "host:port,host:port", the best first.
        kind: What it answers: "request_headers" or "request_body".
    """
    found = pb.ProcessingResponse()
    common = getattr(found, kind).response
    common.header_mutation.set_headers.append(_header(DESTINATION, servers))
    common.clear_route_cache = True
    found.dynamic_metadata.update({_NAMESPACE: {DESTINATION: servers}})
    return found.SerializeToString()


def refusal(error: ServiceError) -> bytes:
    """Return an answer to the client instead of a server's."""
    status = 413 if error.reason == TOO_LARGE else STATUSES.get(error.status, 500)
    headers = {"content-type": "application/json", "cinquefoil-reason": error.reason}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    found = pb.ProcessingResponse()
    answer = found.immediate_response
    answer.status.code, answer.details = status, error.reason.lower()
    answer.body = to_json(error_form(error))
    for name, value in headers.items():
        answer.headers.set_headers.append(_header(name, value))
    return found.SerializeToString()


def pieces(kind: str, body: bytes, *, ended: bool) -> Iterator[bytes]:
    """Yield a body in pieces that Envoy takes.

    Args:
        kind: "request_body" or "response_body".
        body: The body, or a part of it.
        ended: Whether it ends with these pieces.
    """
    if len(body) <= _PIECE_BYTES:  # the usual case
        yield _piece(kind, body, ended=ended)
        return
    for start in range(0, len(body), _PIECE_BYTES):
        last = ended and start + _PIECE_BYTES >= len(body)
        yield _piece(kind, body[start : start + _PIECE_BYTES], ended=last)


def _piece(kind: str, body: bytes, *, ended: bool) -> bytes:
    """Return a piece of a body, four messages deep: a quarter of the time of protobuf's classes."""
    size = len(body)
    head = b"\x0a" + varint(size) if size else b""
    end = b"\x10\x01" if ended else b""
    size += len(head) + len(end)
    streamed = b"\x1a" + varint(size)
    size += len(streamed)
    mutation = b"\x1a" + varint(size)
    size += len(mutation)
    response = b"\x0a" + varint(size)
    size += len(response)
    return b"".join((_TAGS[kind], varint(size), response, mutation, streamed, head, body, end))


def with_headers(kind: str, headers: Mapping[str, str]) -> bytes:
    """Return the answer to an answer's head, or to its trailers, that adds headers."""
    found = pb.ProcessingResponse()
    target = getattr(found, kind)
    mutation = (
        target.header_mutation if kind.endswith("trailers") else target.response.header_mutation
    )
    mutation.set_headers.extend(_header(name, value) for name, value in headers.items())
    return found.SerializeToString()


def headers_of(message: pb.HttpHeaders) -> dict[str, str]:
    """Return the headers that are read, by name; of several of one name the last."""
    return {
        each.key: (each.raw_value or each.value.encode()).decode(errors="replace")
        for each in message.headers.headers
        if each.key in _READ
    }


def subset_of(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """Return the addresses that the gateway allows, a list or one text with commas; None: all."""
    namespace, key = _SUBSET
    fields = message.metadata_context.filter_metadata
    if namespace not in fields or key not in fields[namespace].fields:
        return None
    value = fields[namespace].fields[key]
    texts = [value.string_value]
    if value.HasField("list_value"):
        texts = [each.string_value for each in value.list_value.values]
    return frozenset(each.strip() for text in texts for each in text.split(",") if each.strip())


def served_by(message: pb.ProcessingRequest) -> str:
    """Return the address that answers, as the protocol or plain Envoy says it; "": neither does."""
    metadata, attributes = message.metadata_context.filter_metadata, message.attributes
    if _NAMESPACE in metadata and _SERVED in metadata[_NAMESPACE].fields:
        return metadata[_NAMESPACE].fields[_SERVED].string_value
    if _FILTER in attributes and _UPSTREAM in attributes[_FILTER].fields:
        return attributes[_FILTER].fields[_UPSTREAM].string_value
    return ""


def _header(name: str, value: str) -> pb.HeaderValueOption:
    return pb.HeaderValueOption(
        header=pb.HeaderValue(key=name, raw_value=value.encode()),
        append_action=pb.OVERWRITE_IF_EXISTS_OR_ADD,
    )
