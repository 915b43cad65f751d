"""Requests and answers of the OpenAI API <-> messages of the Open Inference Protocol.

To a server of the OpenAI API the body goes as it came (`services.kit.api_requests`). To a model
that takes tensors a prompt is `text_input`, and how it is continued becomes parameters, under the
names of Triton's backends (docs/generative.md).
Source: OpenAI, "API reference".
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
)
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit import api_requests
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.http.statuses import STATUSES
from services.router.edge.documents import Document
from services.router.edge.tensor_json import parameters, set_parameter

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
_LENGTH_BYTES = 4
_USAGE_NAME = b'"usage"'
_USAGE = re.compile(rb'(?<!\\)"usage"\s*+:\s*+\{')
"""A member `usage`; in a text its quotes would be escaped."""
_MOST_USAGES = 64
"""Places that are looked at, from the end: answers have one or two."""

_DONE = b"data: [DONE]"
_RECEIPT = (
    "model_variant",
    "cached_tokens",
    "accuracy",
    "energy_j",
    "energy_idle_j",
    "energy_method",
    "carbon_gco2e",
    "carbon_status",
    "carbon_total_gco2e",
    "energy_active_j_per_token",
    "energy_total_j_per_token",
    "carbon_active_gco2e_per_token",
    "carbon_total_gco2e_per_token",
    "first_token_s",
    "token_s",
    "class",
    "waited_s",
    "energy_marginal_j",
)


def _no_number(given: object) -> object:
    if isinstance(given, bool):
        return given
    raise ValueError("must be left out or false: this model's server states none")


def _listed(given: object) -> object:
    return given if isinstance(given, list) else (given,)


_Number = Annotated[float, Field(strict=True)]
_Texts = Annotated[tuple[StrictStr, ...], FailFast(), BeforeValidator(_listed)]
"""Texts; a single one may stand by itself."""


class _Options(Document):
    include_usage: StrictBool = False


class Completion(Document):
    """A request to a model of tensors to continue a text.

    Null is the same as a field that is not given. Fields of which one value alone is allowed are
    those that many clients send with it.
    """

    model: StrictStr
    prompt: Annotated[_Texts, Field(min_length=1, max_length=1)]
    max_tokens: StrictInt | None = None
    temperature: _Number | None = None
    top_p: _Number | None = None
    seed: StrictInt | None = None
    stop: _Texts = ()
    stream: StrictBool = False
    stream_options: _Options = _Options()
    user: StrictStr = ""
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    logprobs: Annotated[Literal[False], BeforeValidator(_no_number)] = False
    service_tier: StrictStr = ""
    accuracy_floor: _Number | None = None  # ours: docs/protocol.md

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the generation that the request has."""
        found = {
            "chat": False,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": self.stop[0] if len(self.stop) == 1 else None,
            "stop_sequences": to_json(self.stop).decode() if len(self.stop) > 1 else None,
            "accuracy_floor": self.accuracy_floor,
        }
        return {name: value for name, value in found.items() if value is not None}


class ApiBody(BaseModel):
    """A request to a server of the OpenAI API: what the router reads; all else is the server's.

    Attributes:
        model: The model, or an adapter of one; may be left out where there is one.
        stream: Whether the answer comes as events.
        max_tokens: Limit of the answer; also `max_completion_tokens`, `max_output_tokens`.
        accuracy_floor: Least accuracy of the variant that answers (docs/protocol.md).
    """

    model_config = ConfigDict(extra="allow")

    model: str = ""
    stream: bool = False
    max_tokens: int | None = None
    accuracy_floor: float | None = None


def passed(found: Mapping[str, Any], body: bytes | bytearray, model: str, path: str) -> bytes:
    """Return a body for a server of the OpenAI API as a serialized inference.ModelInferRequest.

    Args:
        found: The body as it is read.
        body: The body.
        model: The model that answers.
        path: Where it goes.

    Raises:
        InvalidArgument: `accuracy_floor` is no number.
    """
    made = pb.ModelInferRequest(model_name=model)
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
    made.parameters[api_requests.PATH_PARAMETER].string_param = path
    if most := api_requests.max_tokens(found):
        made.parameters["max_tokens"].int64_param = most
    floor = found.get("accuracy_floor")
    if floor is not None:
        if type(floor) not in (int, float):
            raise InvalidArgument.at("accuracy_floor", "must be a number")
        set_parameter(made.parameters["accuracy_floor"], floor, "accuracy_floor")
    return made.SerializeToString()


def infer_request(wanted: Completion) -> bytes:
    """Return a request for text as a serialized inference.ModelInferRequest.

    Raises:
        InvalidArgument: The request has a number beyond 64 bits.
    """
    text = wanted.prompt[0].encode(errors="surrogatepass")
    made = pb.ModelInferRequest(model_name=wanted.model)
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for name, value in wanted.parameters().items():
        set_parameter(made.parameters[name], value, name)
    return made.SerializeToString()


def content(response: pb.ModelInferResponse) -> bytes:
    """Return the text of an answer, or of a part of it; b"": it has none."""
    for index, output in enumerate(response.outputs):
        if output.name == "text_output":
            raw = response.raw_output_contents
            elements = [raw[index][_LENGTH_BYTES:]] if raw else output.contents.bytes_contents
            return b"".join(elements)
    return b""


def finish_reason(response: pb.ModelInferResponse) -> str:
    """Return why the text ends: "stop" or "length"."""
    return response.parameters["finish_reason"].string_param or "stop"


def usage(response: pb.ModelInferResponse, plan_version: int) -> dict[str, Any]:
    """Return an answer's tokens, with its receipt."""
    cost = parameters(response.parameters)
    prompt, completion = int(cost.get("input_tokens") or 0), int(cost.get("output_tokens") or 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "cinquefoil": receipt(response, plan_version),
    }


def receipt(response: pb.ModelInferResponse, plan_version: int) -> dict[str, Any]:
    """Return an answer's receipt, under the names of its parameters."""
    cost = parameters(response.parameters)
    return {**{name: cost[name] for name in _RECEIPT if name in cost}, "plan_version": plan_version}


def with_receipt(answer: bytes, found: Mapping[str, Any]) -> bytes:
    """Return an answer with the receipt as a member of its usage, and else as it is.

    Args:
        answer: JSON.
        found: The receipt.

    Returns:
        The answer itself, where it states no usage.
    """
    at = answer.rfind(_USAGE_NAME)
    for _ in range(_MOST_USAGES):
        stated = _USAGE.match(answer, at) if at >= 0 else None
        if stated is not None:
            at = stated.end()
            more = b"" if answer[at:].lstrip()[:1] == b"}" else b","
            return b'%b"cinquefoil":%b%b%b' % (answer[:at], to_json(found), more, answer[at:])
        if at < 0:
            break
        at = answer.rfind(_USAGE_NAME, 0, at)
    return answer


def ending(events: bytes, found: Mapping[str, Any]) -> bytes:
    """Return the last events of a stream with the receipt: in the usage, else as a comment."""
    stated = with_receipt(events, found)
    if stated is not events:
        return stated
    at = events.rfind(_DONE)
    at = len(events) if at < 0 else at
    return b": cinquefoil ".join((events[:at], to_json(found))) + b"\n\n" + events[at:]


def error_form(error: ServiceError) -> Mapping[str, object]:
    """Return the body of an error."""
    status = STATUSES.get(error.status, 500)
    return {
        "error": {
            "message": error.message or error.status,
            "type": _TYPES.get(status, "server_error"),
            "param": error.field or None,
            "code": error.reason.lower(),
        }
    }
