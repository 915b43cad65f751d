"""Requests of the OpenAI API that pass to a server as they came, and the way of their answers back.

What the server says reaches the client byte for byte. Only usage differs: the worker requests it
to count tokens, and takes it out again where the client did not.
Source: OpenAI, "API reference", streaming; vLLM, `StreamOptions` (`continuous_usage_stats`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json, to_json

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.generative.prompts import SIGNATURE, value_of
from services.gpuagent.worker.generative.server_answers import ENDS, Event, Progress
from services.gpuagent.worker.model_port import Request
from services.gpuagent.worker.work_messages import Body
from services.kit import api_requests
from services.kit.config import TextRuntime
from services.kit.errors import InvalidArgument
from services.kit.protobuf_wire import varint

_OURS: Final = ("model", "accuracy_floor")
"""Members that are not the server's."""

_USAGE: Final = re.compile(
    rb',\s*+"usage"\s*+:\s*+'
    rb'(?:null|\{(?:[^{}"]++|"[^"\\]*+"|\{(?:[^{}"]++|"[^"\\]*+")*+\})*+\})'
)
"""A chunk's usage, as servers write it: behind another member, numbers two levels deep."""

_FINGERPRINT: Final = b'"system_fingerprint"'
_SIZE_BYTES: Final = 4
_RAW_CONTENTS: Final = bytes((6 << 3 | 2,))
_LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    "/v1/completions": ("max_tokens",),
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/chat/completions/batch": ("max_tokens", "max_completion_tokens"),
    "/v1/responses": ("max_output_tokens",),
}
"""Members that limit an answer, by path; the first is set where the client gives none."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Request):
    """A request of the OpenAI API.

    Attributes:
        path: Where it goes.
        body: Its members, without those that are not the server's.
        prompt_bytes: Length of its prompt.
        adapter: The model that it names, where that is another than its model; "": none.
        head: Serialized answer without contents.
    """

    path: str
    body: Mapping[str, Any]
    prompt_bytes: int
    adapter: str
    head: bytes

    @property
    def streams(self) -> bool:
        """True if the answer comes as events."""
        return self.body.get("stream") is True and self.path in api_requests.GENERATING

    @property
    def wants_usage(self) -> bool:
        """True if the client wants the usage of a stream."""
        return self._options.get("include_usage") is True

    @property
    def wants_usage_of_chunks(self) -> bool:
        """True if the client wants the usage of every chunk."""
        return self._options.get("continuous_usage_stats") is True

    @property
    def _options(self) -> Mapping[str, Any]:
        options = self.body.get("stream_options")
        return options if isinstance(options, dict) else {}

    def document(self, model: str) -> bytes:
        """Return the body for the server.

        Args:
            model: The model's name there.
        """
        body = {"model": model, **self.body}
        if self.streams and self.path != "/v1/responses":
            counted = {"include_usage": True, "continuous_usage_stats": True}
            body["stream_options"] = {**self._options, **counted}
        return to_json(body)

    def answer(self, piece: bytes, reasoning: bytes = b"", finish_reason: str = "") -> bytes:  # noqa: ARG002
        """Return a serialized ModelInferResponse: what the server said, as it is.

        Args:
            piece: Bytes of the server's.
            reasoning: Nothing: it is in them.
            finish_reason: Why the answer ends here; "": it does not.
        """
        size = len(piece)
        found = b"".join(
            (
                self.head,
                _RAW_CONTENTS,
                varint(size + _SIZE_BYTES),
                size.to_bytes(_SIZE_BYTES, "little"),
                piece,
            )
        )
        if not finish_reason:
            return found
        reason = pb.InferParameter(string_param=finish_reason)
        last = pb.ModelInferResponse(parameters={"finish_reason": reason})
        return found + last.SerializeToString()  # serialized messages merge by concatenation


def read(data: Body, defaults: TextRuntime) -> ApiRequest | None:
    """Read a serialized ModelInferRequest; None: it is a prompt as a tensor.

    Args:
        data: The request.
        defaults: Of what it does not say.

    Raises:
        InvalidArgument: It is not one, or not for a path that servers have.
    """
    request = tensor_messages.decode(data)
    path = value_of(request.parameters, api_requests.PATH_PARAMETER)
    if path is None:
        return None
    if path not in api_requests.PATHS:
        allowed = ", ".join(sorted(api_requests.PATHS))
        place = f"parameters.{api_requests.PATH_PARAMETER}"
        raise InvalidArgument.at(place, f"must be one of {allowed}")
    if len(request.raw_input_contents) != 1 or len(request.raw_input_contents[0]) < _SIZE_BYTES:
        raise InvalidArgument.at("raw_input_contents", "must be the body of an HTTP request")
    raw = request.raw_input_contents[0][_SIZE_BYTES:]
    found = api_requests.document(raw, len(raw))
    body = {name: value for name, value in found.items() if name not in _OURS}
    limits = _LIMITS.get(path, ())
    if limits and defaults.max_tokens and all(body.get(name) is None for name in limits):
        body[limits[0]] = defaults.max_tokens
    model = request.model_name
    head = pb.ModelInferResponse(
        model_name=model, model_version=tensor_messages.VERSION, id=request.id
    )
    (output,) = SIGNATURE.outputs
    head.outputs.add(name=output.name, datatype=output.datatype, shape=[1])
    return ApiRequest(
        id=request.id,
        path=path,
        body=body,
        prompt_bytes=api_requests.prompt_bytes(found, len(raw)),
        adapter=named if isinstance(named := found.get("model"), str) and named != model else "",
        head=head.SerializeToString(),
    )


class Passage:
    """Passes the events of one answer on.

    Events before the first token stay with it, so that until then another server may answer. The
    last ones, from the usage on, are left for the end, where the receipt comes to them.

    Args:
        request: The request.
        progress: Counts.
    """

    def __init__(self, request: ApiRequest, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._held: list[bytes] = []
        self._with_usage: tuple[int, bytes] | None = None  # of those held: which one, as it came
        self._began = self._ending = False
        self.complete = False

    def take(self, event: Event) -> bytes:
        """Take an event; return what may leave now.

        Raises:
            ServiceError: It states an error, or is none.
        """
        raw, chunk = event
        if chunk is None:
            self.complete = self._ending = True
        else:
            generated, _, _ = self._progress.take(chunk)
            self._began |= generated
            self._ending = _states_the_end(chunk) or (self._ending and not generated)
            raw = self._wanted(raw, chunk)
        self._held.append(raw)
        if self._ending or not self._began:
            return b""
        self._with_usage = None
        return self.rest()

    def rest(self) -> bytes:
        """Return what is held; the usage beside the last choice stays where it is the only one."""
        if self._with_usage is not None:
            at, raw = self._with_usage
            self._held[at] = raw
        held, self._held = b"".join(self._held), []
        return held

    def _wanted(self, raw: bytes, chunk: Mapping[str, Any]) -> bytes:
        """Return an event without usage that the client does not want; b"": it is only that."""
        if "usage" not in chunk:
            return raw
        stated, wants = isinstance(chunk["usage"], dict), self._request.wants_usage
        if stated and wants:
            self._with_usage = (len(self._held), raw) if chunk.get("choices") else None
        if stated and not chunk.get("choices"):
            if not wants:
                self._move_fingerprint(chunk)
            return raw if wants else b""
        if wants and (self._request.wants_usage_of_chunks or not stated):
            return raw
        return without_usage(raw, chunk)

    def _move_fingerprint(self, chunk: Mapping[str, Any]) -> None:
        """Keep what vLLM puts beside the usage, and without usage beside the last choice."""
        stated = chunk.get("system_fingerprint")
        if stated and self._held and _FINGERPRINT not in self._held[-1]:
            before, brace, end = self._held[-1].rpartition(b"}")
            self._held[-1] = b"%b,%b:%b%b%b" % (before, _FINGERPRINT, to_json(stated), brace, end)


def _states_the_end(chunk: Mapping[str, Any]) -> bool:
    """Return whether an event states the usage of the whole answer."""
    choices = chunk.get("choices")
    return chunk.get("type") in ENDS or (
        isinstance(chunk.get("usage"), dict) and (not choices or any(map(_ends, choices)))
    )


def without_usage(raw: bytes, chunk: Mapping[str, Any]) -> bytes:
    """Return an event without its usage, and else as it is.

    Args:
        raw: The event.
        chunk: What it says.
    """
    left = {name: value for name, value in chunk.items() if name != "usage"}
    found, number = _USAGE.subn(b"", raw)
    if number == 1 and _says(found, left):
        return found
    return b"data: %b\n\n" % to_json(left)


def _says(raw: bytes, chunk: Mapping[str, Any]) -> bool:
    _, _, data = raw.partition(b"data:")
    try:
        return bool(from_json(data) == chunk)
    except ValueError:  # lines beside the data
        return False


def _ends(choice: object) -> bool:
    return isinstance(choice, dict) and bool(choice.get("finish_reason"))
