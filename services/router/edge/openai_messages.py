"""Requests and answers of the OpenAI API <-> messages of the Open Inference Protocol.

A prompt is the tensor `text_input`; what the API says of its generation becomes parameters, under
the names that language models of workers take (docs/generative.md).
Source: OpenAI, "API reference": completions, chat completions.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
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
_RECEIPT = (
    "model_variant",
    "accuracy",
    "energy_j",
    "energy_idle_j",
    "energy_method",
    "carbon_gco2e",
    "carbon_status",
    "energy_j_per_token",
    "carbon_gco2e_per_token",
    "first_token_s",
    "token_s",
)


def _listed(given: object) -> object:
    return given if isinstance(given, list) else (given,)


_Number = Annotated[float, Field(strict=True)]
_Texts = Annotated[tuple[StrictStr, ...], FailFast(), BeforeValidator(_listed)]
"""Texts; a single one may stand by itself."""


class _Options(Document):
    include_usage: StrictBool = False


class _Generation(Document):
    """Fields of both kinds of request; null is the same as a field that is not given.

    Fields of which one value alone is allowed are those that many clients send with it.
    """

    model: StrictStr
    max_tokens: StrictInt | None = None
    temperature: _Number | None = None
    top_p: _Number | None = None
    seed: StrictInt | None = None
    stop: _Texts = ()
    stream: StrictBool = False
    stream_options: _Options = _Options()
    user: StrictStr = ""
    n: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    logprobs: Literal[False] = False
    accuracy_floor: _Number | None = None  # ours: docs/protocol.md

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the generation that the request has."""
        found = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": self.stop[0] if len(self.stop) == 1 else None,
            "stop_sequences": to_json(self.stop).decode() if len(self.stop) > 1 else None,
            "accuracy_floor": self.accuracy_floor,
        }
        return {name: value for name, value in found.items() if value is not None}


class Completion(_Generation):
    """A request to continue a text."""

    prompt: Annotated[_Texts, Field(min_length=1, max_length=1)]
    best_of: Literal[1] = 1
    echo: Literal[False] = False

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt[0]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the generation: the prompt is used as it is."""
        return super().parameters() | {"chat": False}


class _Text(Document):
    type: Literal["text"]
    text: StrictStr


def _parts(given: object) -> object:
    return ({"type": "text", "text": given},) if isinstance(given, str) else given


class Message(Document):
    """A message of a conversation. Attributes: role, content (parts; a text may stand for one)."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[tuple[_Text, ...], FailFast(), BeforeValidator(_parts)]
    name: StrictStr = ""

    @property
    def text(self) -> str:
        """Its content."""
        return "".join(part.text for part in self.content)


class Chat(_Generation):
    """A request for the next message of a conversation."""

    messages: Annotated[tuple[Message, ...], FailFast(), Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None

    @property
    def text(self) -> str:
        """The last message: the user's.

        Raises:
            InvalidArgument: It is not the user's.
        """
        if self.messages[-1].role != "user":
            place = f"messages[{len(self.messages) - 1}].role"
            raise InvalidArgument.at(place, "the last message must be the user's")
        return self.messages[-1].text

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the generation, with the messages before the last."""
        found = super().parameters() | {"chat": True}
        if self.max_completion_tokens is not None:
            found["max_tokens"] = self.max_completion_tokens
        if len(self.messages) > 1:
            roles = {"developer": "system"}
            before = [
                {"role": roles.get(each.role, each.role), "content": each.text}
                for each in self.messages[:-1]
            ]
            found["messages"] = to_json(before).decode()
        return found


def infer_request(wanted: Completion | Chat) -> bytes:
    """Return a request for text as a serialized inference.ModelInferRequest.

    Raises:
        InvalidArgument: The request has no prompt of the user's, or a number beyond 64 bits.
    """
    text = wanted.text.encode(errors="surrogatepass")
    made = pb.ModelInferRequest(model_name=wanted.model)
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for name, value in wanted.parameters().items():
        set_parameter(made.parameters[name], value, name)
    return made.SerializeToString()


def generated(response: pb.ModelInferResponse) -> str:
    """Return the text of an answer, or of a part of it; "": it has none."""
    for index, output in enumerate(response.outputs):
        if output.name == "text_output":
            raw = response.raw_output_contents
            elements = [raw[index][_LENGTH_BYTES:]] if raw else output.contents.bytes_contents
            return b"".join(elements).decode(errors="replace")
    return ""


def finish_reason(response: pb.ModelInferResponse) -> str:
    """Return why the text ends: "stop" or "length"."""
    return response.parameters["finish_reason"].string_param or "stop"


def usage(response: pb.ModelInferResponse, plan_version: int) -> dict[str, Any]:
    """Return an answer's tokens, and its receipt under the names of its parameters."""
    cost = parameters(response.parameters)
    prompt, completion = int(cost.get("input_tokens") or 0), int(cost.get("output_tokens") or 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **{name: cost[name] for name in _RECEIPT if name in cost},
        "plan_version": plan_version,
    }


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
