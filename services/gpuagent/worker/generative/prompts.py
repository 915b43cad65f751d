"""The Open Inference Protocol's messages <-> prompts and text; names as of Triton's vLLM backend.

A prompt is the tensor `text_input` (or `prompt`), BYTES [1], UTF-8. How text is generated is said
by the request's parameters `max_tokens`, `temperature`, `top_p`, `seed`, `stop` and
`stop_sequences`; `chat` and `messages` say what comes before the prompt.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.model_port import Request
from services.gpuagent.worker.onnx_engine import Signature, TensorSpec
from services.gpuagent.worker.tensor_messages import Inference
from services.gpuagent.worker.work_messages import Body
from services.kit.config import TextRuntime
from services.kit.errors import InvalidArgument

MOST_BYTES_PER_TOKEN: Final = 64
"""Maximum of prompts; a longer one cannot fit its context, and is not tokenized."""

_OUTPUTS: Final = (TensorSpec("text_output", "BYTES", (1,)),)
_SIGNATURES: Final = {
    name: Signature((TensorSpec(name, "BYTES", (1,)),), _OUTPUTS)
    for name in ("text_input", "prompt")
}
SIGNATURE: Final = _SIGNATURES["text_input"]

_DEFAULT_TOKENS: Final = 256
"""Of an answer, where neither the request nor the runtime states a limit."""
_HIGHEST_TEMPERATURE: Final = 2.0
_HIGHEST_SEED: Final = 2**32 - 2  # the one above is llama.cpp's word for "any"
_LONGEST_STOP: Final = 256
_MOST_STOPS: Final = 4
_ROLES: Final = ("system", "user", "assistant")

_READ: Final = frozenset(
    ["max_tokens", "temperature", "top_p", "seed", "stop", "stop_sequences", "chat", "messages"]
)
_ROUTED: Final = frozenset(["timeout", "priority", "accuracy_floor", "wait_until"])
_NO_EFFECT: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "exclude_input_in_output": (True,),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "n": (1,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "return_finish_reason": (True, False),
    "return_num_input_tokens": (False,),
    "return_num_output_tokens": (False,),
    "sequence_id": (0,),
    "skip_special_tokens": (True,),
    "stream": (True, False),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "triton_enable_empty_final_response": (True, False),
    "use_beam_search": (False,),
}
"""Parameters that many clients send, with the values that change nothing."""

Parameters = Mapping[str, pb.InferParameter]


@dataclass(frozen=True, slots=True)
class Prompt(Request):
    """A valid request for text.

    Attributes:
        inference: The request, as the protocol's answer needs it.
        text: The prompt.
        max_tokens: To generate at most, >= 1.
        temperature: 0: always the likeliest token. None: the engine's default.
        top_p: Of the likeliest tokens, so much of the probability, (0, 1]; None: the default.
        seed: Same seed, prompt and slot: same text. None: any.
        stop: Words that end the text; they are no part of it.
        chat: The prompt is a message of the user's, in the model's chat template.
        history: Messages before it, as the template takes them: role and content.
    """

    inference: Inference
    text: str
    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    chat: bool = False
    history: tuple[Mapping[str, str], ...] = ()

    @property
    def path(self) -> str:
        """Where a server of OpenAI's API takes it."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def prompt_bytes(self) -> int:
        """Length of all that the model reads."""
        return len(self.text.encode()) + sum(len(each["content"].encode()) for each in self.history)

    def document(self, model: str) -> bytes:
        """Return the body for a server of OpenAI's API, which streams the text.

        Args:
            model: The model's name there.
        """
        last = {"role": "user", "content": self.text}
        fields = {
            "model": model,
            "prompt": None if self.chat else self.text,
            "messages": [*self.history, last] if self.chat else None,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": list(self.stop) or None,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        return to_json({name: value for name, value in fields.items() if value is not None})

    def answer(self, piece: bytes, reasoning: bytes = b"", finish_reason: str = "") -> bytes:
        """Return a serialized ModelInferResponse.

        Args:
            piece: Generated text.
            reasoning: Of the model, before the text; it becomes the parameter `reasoning_content`.
            finish_reason: Why it ends here: "stop" (the model's end, or a stop word) or "length".
                "": it does not.
        """
        said = np.array([piece], dtype=object)
        body = tensor_messages.response(self.inference, SIGNATURE, [said])
        more = {"reasoning_content": reasoning.decode(errors="replace")} if reasoning else {}
        if finish_reason:
            more["finish_reason"] = finish_reason
        if not more:
            return body
        stated = {name: pb.InferParameter(string_param=value) for name, value in more.items()}
        last = pb.ModelInferResponse(parameters=stated)
        return body + last.SerializeToString()  # serialized messages merge by concatenation


def read(data: Body, defaults: TextRuntime, context_tokens: int) -> Prompt:
    """Read and check a serialized ModelInferRequest.

    Args:
        data: The request.
        defaults: Of what it does not say.
        context_tokens: Maximum tokens of prompt and answer.

    Raises:
        InvalidArgument: It is not one, or has an invalid value; `field` says where.
        NotFound: It names another version of the model.
    """
    request = tensor_messages.decode(data)
    named = request.inputs[0].name if request.inputs else ""
    inference = tensor_messages.check(request, _SIGNATURES.get(named, SIGNATURE))
    given = request.parameters
    _refuse_unknown(given)
    max_tokens = _whole(given, "max_tokens", 1, context_tokens)
    default = defaults.max_tokens or _DEFAULT_TOKENS
    chat = _truth(given, "chat", default=defaults.chat)
    history = _history(given, chat=chat)
    return Prompt(
        id=inference.id,
        inference=inference,
        text=_text(inference, context_tokens, history),
        max_tokens=min(default, context_tokens) if max_tokens is None else max_tokens,
        temperature=_real(given, "temperature", 0.0, _HIGHEST_TEMPERATURE),
        top_p=_real(given, "top_p", 1e-6, 1.0),
        seed=_whole(given, "seed", 0, _HIGHEST_SEED),
        stop=_stop(given),
        chat=chat,
        history=history,
    )


def _refuse_unknown(given: Parameters) -> None:
    """Refuse parameters that would be passed over, by name, unless they change nothing."""
    for name in given:
        value = value_of(given, name)
        if value is None or name in _READ or name in _ROUTED or name == "user":
            continue
        if name not in _NO_EFFECT:
            known = ", ".join(sorted(_READ))
            raise InvalidArgument.at(
                f"parameters.{name}", f"unknown here; a text's parameters are {known}"
            )
        if not changes_nothing(value, _NO_EFFECT[name]):
            allowed = " or ".join(map(str, _NO_EFFECT[name]))
            raise _refusal(name, f"left out or {allowed}, as nothing else is done", value)


def changes_nothing(value: object, neutral: Iterable[object]) -> bool:
    """Return whether a value is one of those that change nothing; false is no 0."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral
    )


def _text(inference: Inference, context_tokens: int, history: Iterable[Mapping[str, str]]) -> str:
    (array,) = inference.feeds.values()
    text = str(array[0])
    field = "raw_input_contents[0]"
    if not text:
        raise InvalidArgument.at(field, "the prompt is empty")
    size = len(text.encode()) + sum(len(each["content"].encode()) for each in history)
    most = context_tokens * MOST_BYTES_PER_TOKEN
    if size > most:
        raise InvalidArgument.at(
            field,
            f"the prompt has {size} bytes; {most} at most can fit the context of "
            f"{context_tokens} tokens",
        )
    return text


def _whole(given: Parameters, name: str, low: int, high: int) -> int | None:
    value = value_of(given, name)
    if value is None or (type(value) is int and low <= value <= high):
        return value
    raise _refusal(name, f"an integer from {low} to {high}", value)


def _real(given: Parameters, name: str, low: float, high: float) -> float | None:
    value = value_of(given, name)
    if value is None or (type(value) in (int, float) and low <= value <= high):
        return None if value is None else float(value)
    raise _refusal(name, f"a number from {low:g} to {high:g}", value)


def _stop(given: Parameters) -> tuple[str, ...]:
    value = value_of(given, "stop")
    more = _list(given, "stop_sequences")
    words = (*(() if value is None else (value,)), *more)
    for word in words:
        if not isinstance(word, str) or not 1 <= len(word.encode()) <= _LONGEST_STOP:
            name = "stop_sequences" if word in more else "stop"
            raise _refusal(name, f"a string of 1 to {_LONGEST_STOP} bytes", word)
    if len(words) > _MOST_STOPS:
        raise _refusal("stop_sequences", f"at most {_MOST_STOPS} with `stop`", len(words))
    return words


def _history(given: Parameters, *, chat: bool) -> tuple[Mapping[str, str], ...]:
    found = _list(given, "messages")
    if found and not chat:
        raise _refusal("messages", "left out where `chat` is false", len(found))
    if not all(map(_is_message, found)):
        allowed = f"objects of a role ({', '.join(_ROLES)}) and content, a string, and nothing else"
        raise _refusal("messages", allowed, "another object")
    return tuple(found)


def _is_message(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == {"role", "content"}
        and found["role"] in _ROLES
        and isinstance(found["content"], str)
    )


def _list(given: Parameters, name: str) -> list[Any]:
    """Return a list that is given as JSON; empty where it is not given."""
    value = value_of(given, name)
    if value is None:
        return []
    try:
        found = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise _refusal(name, "a list in JSON, as a string", value)
    return found


def _truth(given: Parameters, name: str, *, default: bool) -> bool:
    value = value_of(given, name)
    if value is None or isinstance(value, bool):
        return default if value is None else value
    raise _refusal(name, "a bool", value)


def value_of(given: Parameters, name: str) -> Any:
    """Return a parameter's value; None: it is not given."""
    if name not in given:
        return None
    parameter = given[name]
    choice = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, choice) if choice else None


def _refusal(name: str, allowed: str, value: object) -> InvalidArgument:
    field = f"parameters.{name}"
    return InvalidArgument(f"{field} must be {allowed}, got {str(value)[:80]!r}", field=field)
